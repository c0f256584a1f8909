"""The walks through the scenes hold, find planted faults, and can be replayed."""

import random

import pytest
from redis import Redis

from tests.architecture.sources import PACKAGES, ROOT
from tests.simulation.all_scenes import ALL_MUTATIONS, SCENES
from tests.simulation.outages import OUTAGES
from tests.simulation.scene_mutations import SCENE_MUTATIONS
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.scripts import require_text, simulated_scripts
from tests.simulation.walk import Step, make_steps, replay, shrink, tell

COUNT = 150
#: these walks are the same in each run; FRESH further ones are new
FIXED, FRESH = range(1, 3), 4
#: walks through ``outages`` that once broke a promise: what was left there
BROKEN_OFF = {
    "the permit of a call whose result was stored": [
        ("send_plain_message", 3016672234),
        ("reserve", 334353384),
        ("claim", 3027376359),
        ("mark", 2336594486),
        ("begin", 1729547983),
        ("refuse_writes", 1044404381),
    ],
    "the place in its mailbox of an event whose handler ran on": [
        ("refuse_writes", 2625043091),
        ("refuse_writes", 2803274611),
        ("send_plain_message", 2080174802),
        ("reserve", 2280713142),
        ("oversleep", 1901628154),
        ("refuse_writes", 3728736672),
    ],
    "a completed call whose answer was sent": [
        ("submit", 773259508),
        ("reserve", 380779821),
        ("mark_by_lead", 589085250),
        ("begin", 3442923457),
        ("break_off_answer", 704217953),
        ("oversleep", 837173214),
    ],
}
#: how many walks a planted fault may outlive here; ``python -m tests.simulation --mutations`` plants all
MOST_WALKS = 60
QUICK = [
    "a dead call is no letter",
    "replays are not noted",
    "an agent waits for itself",
    "no answer is sent",
    "give back drops the copy before it pushes",
    "deadlines that are overwritten stay so",
    "a pause holds no call",
    "reserve pushes no messages of admitted calls",
    "results of calls with keys are kept without their outcome",
    "a Step is opened and not kept",
    "an answer that is stored is paid again",
    "a reservation of several stops at a record that cannot be read",
    "a sweep stops at a record that cannot be read",
    "start marks a call that Redis has lost",
    "a call that names another revision is claimed early",
    "a Step that is not kept counts as the last one",
    "a slot is not compared",
    "a newer bundle loses the next slot",
]


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene is not SWARM], ids=lambda one: one.name)
def test_every_promise_holds_in_walks_of_scene(redis: Redis, scene: Scene) -> None:
    first = random.randrange(1_000, 10**9)
    with simulated_scripts():
        parts = scene.parts(redis)
        for seed in (*FIXED, *range(first, first + FRESH)):
            failure = replay(parts, make_steps(seed, COUNT, scene), scene)
            assert failure is None, tell(seed, COUNT, shrink(parts, failure, scene))


@pytest.mark.parametrize("left", BROKEN_OFF)
def test_script_that_is_broken_off_leaves_nothing(redis: Redis, left: str) -> None:
    with simulated_scripts():
        failure = replay(OUTAGES.parts(redis), [Step(*step) for step in BROKEN_OFF[left]], OUTAGES)

    assert failure is None, failure.reason


def test_every_fault_of_tables_can_still_be_planted() -> None:
    texts = [path.read_text("utf-8") for folder in PACKAGES for path in (ROOT / folder).rglob("*.lua")]
    for _, mutation in ALL_MUTATIONS.values():
        require_text(mutation, texts)


@pytest.mark.parametrize("name", QUICK)
def test_planted_fault_is_found_in_its_scene(redis: Redis, name: str) -> None:
    scene, mutation = SCENE_MUTATIONS[name]
    with simulated_scripts(mutation):
        parts = scene.parts(redis)
        assert any(replay(parts, make_steps(seed, COUNT, scene), scene) for seed in range(1, MOST_WALKS))
