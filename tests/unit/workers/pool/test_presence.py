"""A worker's beat, and what it does about the revision that it lacks."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.roster import WorkerRecord
from tests.unit.workers.pool.fake_consumer import Consumer
from workers.pool.left_queues import LeftQueues
from workers.pool.presence import Presence

RECORD = WorkerRecord(
    name="w", pid=1, host="here", agents=("lizard",), concurrency=1, root_id="root", started_at="x"
)


class Beating:
    """A worker of lizard and newt, without Redis: what it says of itself is written down."""

    def __init__(self) -> None:
        self.consumer = Consumer("agent.lizard", "agent.newt")
        self.left = LeftQueues(self.consumer)
        self.active = SimpleNamespace(ref="r1", registry=SimpleNamespace(version=1))
        self.stand_by = SimpleNamespace(look=lambda: None, agents=frozenset[str](), is_over=False)
        self.said: list[WorkerRecord] = []
        self.shutdowns: Any = SimpleNamespace(look=lambda: None)
        self.presence = Presence(self.consumer)
        self.presence._published = "r1", 1
        self.presence._left = self.left
        nothing = SimpleNamespace(sweep=lambda _: None, look=lambda *_: None)
        self.runtime: Any = SimpleNamespace(
            revisions=SimpleNamespace(active=self.active),
            roster=SimpleNamespace(publish_worker=lambda record, _: self.said.append(record)),
            stand_by=self.stand_by,
            children=SimpleNamespace(limit=1),
            **dict.fromkeys(("settlement", "doorkeeper", "collector"), nothing),
        )

    def beat(self) -> None:
        """Say that it lives."""
        self.presence._beat(self.runtime, RECORD, self.consumer, self.shutdowns)


def test_a_worker_still_serves_the_agents_that_it_stands_by_for() -> None:
    worker = Beating()
    worker.stand_by.agents = frozenset({"newt"})
    worker.presence._stand_by(worker.runtime, worker.left, worker.beat)
    worker.beat()
    assert list(worker.consumer.queues) == ["agent.lizard"]
    assert [record.agents for record in worker.said] == [("lizard", "newt")]


def test_a_worker_says_at_once_that_it_has_another_revision() -> None:
    worker = Beating()
    worker.presence._stand_by(worker.runtime, worker.left, worker.beat)
    assert worker.said == []
    worker.presence._published = "r0", 1
    worker.presence._stand_by(worker.runtime, worker.left, lambda: worker.said.append(RECORD))
    assert worker.said == [RECORD]


def test_a_worker_that_drains_is_not_told_to_end_a_second_time() -> None:
    worker = Beating()
    worker.left.leave({"newt"})
    worker.stand_by.is_over = True
    worker.shutdowns.look = lambda: pytest.fail("asked again: that stops it at once")
    worker.beat()
    assert len(worker.said) == 1


def test_a_worker_says_how_many_places_it_has_now() -> None:
    worker = Beating()
    worker.consumer.pool = SimpleNamespace(limit=5)
    worker.beat()
    assert [record.concurrency for record in worker.said] == [5]
    assert worker.runtime.children.limit == 5
