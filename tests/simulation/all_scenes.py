"""All scenes, and the faults that are planted in each."""

from tests.simulation.asked_models import MODELS
from tests.simulation.busy_limits import BUSY_LIMITS
from tests.simulation.deletions import DELETIONS
from tests.simulation.foreign_fields import FOREIGN_FIELDS
from tests.simulation.handoffs import HANDOFFS
from tests.simulation.letters import LETTERS
from tests.simulation.mutations import MUTATIONS
from tests.simulation.opened_steps import STEPS
from tests.simulation.outages import OUTAGES
from tests.simulation.pauses import PAUSES
from tests.simulation.restores import RESTORES
from tests.simulation.revised_steps import REVISIONS
from tests.simulation.scene_mutations import SCENE_MUTATIONS
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.schedules import SCHEDULES
from tests.simulation.scripts import Mutation
from tests.simulation.shared_keys import SHARED_KEYS

SCENES = (
    SWARM,
    LETTERS,
    DELETIONS,
    HANDOFFS,
    PAUSES,
    STEPS,
    MODELS,
    OUTAGES,
    SHARED_KEYS,
    FOREIGN_FIELDS,
    BUSY_LIMITS,
    RESTORES,
    SCHEDULES,
    REVISIONS,
)

#: by name: the scene in which it must be found, and the fault
ALL_MUTATIONS: dict[str, tuple[Scene, Mutation]] = {
    **{name: (SWARM, mutation) for name, mutation in MUTATIONS.items()},
    **SCENE_MUTATIONS,
}
