"""A worker without the active revision leaves its agents' calls to those that have it."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.revisions.active import RevisionState
from workers.left_queues import LeftQueues
from workers.process_identity import this_process
from workers.stand_by import BEHIND_SECONDS, StandBy


class Workers:
    """This worker runs r1 while r2 is active; others as they are said to."""

    def __init__(self, *others: Any) -> None:
        revisions: Any = SimpleNamespace(active=SimpleNamespace(ref="r1"), served=("lizard", "newt"))
        self.stand_by = StandBy(revisions, lambda: RevisionState(active="r2"), lambda: others)

    def agents(self) -> frozenset[str]:
        self.stand_by.look()
        return self.stand_by.agents


def other(ref: str, *agents: str, id: str = "other") -> Any:
    """Return the record of a worker with our process id and host: as in a container with the same name."""
    us = this_process()
    return SimpleNamespace(bundle_ref=ref, agents=agents, id=id, pid=us.pid, host=us.host)


def test_a_worker_stands_by_for_the_agents_that_others_serve() -> None:
    here = Workers(other("r2", "lizard", "frog"), other("r1", "newt"))
    assert here.agents() == frozenset()
    here.stand_by.lack("r2", is_unavailable=True)
    assert here.agents() == {"lizard"}
    here.stand_by.have()
    assert here.agents() == frozenset()


def test_who_is_the_last_one_goes_on() -> None:
    here = Workers(other("r2", "lizard", id=this_process().id))
    here.stand_by.lack("r2", is_unavailable=True)
    assert here.agents() == frozenset()


def test_loading_may_take_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("workers.stand_by.monotonic", lambda: clock[0])
    here = Workers(other("r2", "lizard"))
    here.stand_by.lack("r2")
    assert here.agents() == frozenset()
    clock[0] += BEHIND_SECONDS
    here.stand_by.lack("r2")  # it is still being loaded
    assert here.agents() == {"lizard"}


def test_a_worker_that_stops_takes_nothing_up_again() -> None:
    here = Workers(other("r2", "lizard"))
    here.stand_by.lack("r2", is_unavailable=True)
    assert here.agents() == {"lizard"}
    here.stand_by.end()
    here.stand_by.have()
    assert here.agents() == {"lizard"}


@pytest.mark.parametrize(
    ("ref", "agent", "is_left"),
    [
        ("r2", "lizard", True),
        ("r2", "newt", False),  # nobody could run it
        ("r0", "lizard", False),  # not what is active
        ("r1", "lizard", False),  # what runs here
        (None, "lizard", False),
    ],
)
def test_a_call_is_left_to_others_only_if_they_can_run_it(ref: str | None, agent: str, is_left: bool) -> None:
    here = Workers(other("r2", "lizard"), other("r0", "lizard"))
    assert here.stand_by.leaves(agent, ref) is is_left
    assert bool(here.agents()) is is_left


class Consumer:
    """A consumer of some queues, of Celery's own pool."""

    pool = None

    def __init__(self, *queues: str) -> None:
        self.queues = dict.fromkeys(queues)
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=self.queues)))

    def cancel_task_queue(self, queue: str) -> None:
        del self.queues[queue]

    def add_task_queue(self, queue: str) -> None:
        self.queues[queue] = None


def test_the_queues_that_are_left_are_taken_up_again_and_no_others() -> None:
    consumer = Consumer("agent.lizard", "agent.lizard.events", "agent.newt")
    left = LeftQueues(consumer)
    left.leave({"lizard", "frog"})
    assert (set(consumer.queues), left.agents) == ({"agent.newt"}, {"lizard"})
    left.leave(())
    assert set(consumer.queues) == {"agent.lizard", "agent.lizard.events", "agent.newt"}
    assert left.names == frozenset()
