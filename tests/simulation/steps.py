"""The steps of walks through the swarm, and how likely they are."""

from random import Random
from typing import Any, Protocol

from tests.simulation import faults, leads, producers, rare, sweeps, watchers, workers


class Deed(Protocol):
    """One thing that may happen. It chooses by its own generator among what is possible."""

    __name__: str

    def __call__(self, world: Any, pick: Random, /) -> bool:
        """Return whether anything has happened."""


#: each step, and the least weight that it has in a walk: without some of them nothing happens
TABLE: tuple[tuple[Deed, int], ...] = (
    (producers.submit, 3),
    (producers.submit_other_arguments, 0),
    (producers.send_plain_message, 0),
    (producers.cancel, 0),
    (producers.run_now, 0),
    (producers.complete, 0),
    (producers.approve, 0),
    (workers.reserve, 6),
    (workers.claim, 4),
    (workers.mark, 8),
    (workers.begin, 8),
    (workers.finish, 4),
    (workers.outlast, 3),
    (workers.finish_many, 0),
    (leads.mark_by_lead, 0),
    (leads.finish_by_lead, 0),
    (watchers.look_for_cancelled, 0),
    (watchers.wait_for_results, 0),
    (rare.cancel_held, 1),
    (rare.complete_twice, 1),
    (rare.damage_among_others, 1),
    (rare.lose_redis_twice, 0),
    (workers.suspend, 0),
    (workers.report_progress, 0),
    (workers.renew, 2),
    (workers.give_back, 0),
    (workers.run_long, 0),
    (workers.reconnect, 0),
    (faults.freeze, 0),
    (faults.thaw, 3),
    (faults.hold_interpreter, 0),
    (faults.kill, 0),
    (sweeps.put_back, 0),
    (sweeps.sweep, 1),
    (sweeps.wake, 1),
    (sweeps.settle, 2),
    (faults.damage, 1),
    (faults.deliver_twice, 0),
    (faults.oversleep, 0),
    (faults.tick, 2),
)
