"""All steps of walks, and how likely they are."""

from random import Random
from typing import Protocol

from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.world import World


class Deed(Protocol):
    """One thing that may happen. It chooses by its own generator among what is possible."""

    __name__: str

    def __call__(self, world: World, pick: Random, /) -> bool:
        """Return whether anything has happened."""


#: each step, and the least weight that it has in a walk: without some of them nothing happens
_TABLE: tuple[tuple[Deed, int], ...] = (
    (producers.submit, 3),
    (producers.submit_other_arguments, 0),
    (producers.send_plain_message, 0),
    (producers.cancel, 0),
    (producers.complete, 0),
    (producers.approve, 0),
    (workers.reserve, 3),
    (workers.claim, 0),
    (workers.mark, 3),
    (workers.begin, 3),
    (workers.finish, 2),
    (workers.finish_many, 0),
    (workers.suspend, 0),
    (workers.go_on_after_pause, 0),
    (workers.report_progress, 0),
    (workers.renew, 0),
    (workers.give_back, 0),
    (faults.freeze, 0),
    (faults.thaw, 0),
    (faults.kill, 0),
    (sweeps.put_back, 0),
    (sweeps.sweep, 1),
    (sweeps.settle, 2),
    (faults.damage, 0),
    (faults.deliver_twice, 0),
    (faults.oversleep, 0),
    (faults.tick, 2),
)
DEEDS = {deed.__name__: deed for deed, _ in _TABLE}
#: one of these, chosen for each walk, is the weight of a step if it is not less than the least one
_WEIGHTS = (0, 1, 1, 3, 8)


def choose_weights(random: Random) -> list[int]:
    """Return a weight for each of ``DEEDS``: each walk has its own mix."""
    return [max(random.choice(_WEIGHTS), least) for _, least in _TABLE]
