"""What becomes of a shutdown message."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.fleet.agent_registry import ShutdownRequests
from tests.unit.workers.pool.fake_consumer import Consumer
from workers.pool.consumed_queues import PausedQueues
from workers.pool.intake import note_shutdown
from workers.pool.shutdown import ShutdownWatch


@pytest.fixture
def requests() -> Iterator[ShutdownRequests]:
    with fakeredis.FakeRedis() as redis:
        yield ShutdownRequests(redis, Keys())


def note(requests: ShutdownRequests, **payload: object) -> None:
    runtime: Any = SimpleNamespace(shutdowns=requests)
    note_shutdown(runtime, {"type": "shutdown", "from": "client", "to": "coder", "payload": payload})


@pytest.mark.parametrize("payload", [{"agent": "coder"}, {}, {"agent": None}])
def test_shutdown_asks_named_or_addressed_agents_workers(
    requests: ShutdownRequests, payload: dict[str, object]
) -> None:
    note(requests, **payload, reason="new version")

    assert requests.agents_to_stop("w", ["coder", "planner"], 0) == {"coder": "new version"}


def test_message_may_be_about_one_worker(requests: ShutdownRequests) -> None:
    note(requests, worker="w")

    assert requests.agents_to_stop("w", ["coder"], 0) == {"coder": ""}
    assert requests.agents_to_stop("other", ["coder"], 0) == {}


@pytest.mark.parametrize("payload", [{"agent": "coder", "worker": "w"}, {"agent": ["coder"]}, {"worker": 7}])
def test_message_that_makes_no_sense_is_dropped(
    requests: ShutdownRequests, payload: dict[str, object]
) -> None:
    note(requests, **payload)

    assert requests.agents_to_stop("w", ["coder"], 0) == {}


@pytest.mark.parametrize("wire", [{}, {"type": "shutdown"}, {"type": "shutdown", "payload": 3}, "drain"])
def test_malformed_shutdown_message_is_dropped(requests: ShutdownRequests, wire: object) -> None:
    note_shutdown(cast(Any, SimpleNamespace(shutdowns=requests)), wire)

    assert requests.agents_to_stop("w", ["coder"], 0) == {}


class Leaving:
    """A worker of some queues, which looks at the requests."""

    def __init__(self, requests: ShutdownRequests, *queues: str) -> None:
        self.consumer = Consumer(*queues)
        self.left = PausedQueues(self.consumer)
        self.watch = ShutdownWatch(requests, self.consumer, self.left)
        self.watch._since = 0


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the signals that the process sends to itself."""
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: sent.append(number))
    return sent


def test_worker_standing_by_hears_shutdown_request(requests: ShutdownRequests, signals: list[int]) -> None:
    worker = Leaving(requests, "agent.coder", "agent.coder.events")
    worker.left.leave({"coder"})
    note(requests, worker="w")
    worker.watch.look()
    assert signals == [signal.SIGTERM]


def test_worker_leaving_one_agent_stays_for_standby_agent(
    requests: ShutdownRequests, signals: list[int]
) -> None:
    worker = Leaving(requests, "agent.coder", "agent.planner")
    worker.left.leave({"coder"})
    note(requests, agent="planner")
    worker.watch.look()
    assert (worker.consumer.queues, worker.left.agents, signals) == ({}, {"coder"}, [])
    worker.left.leave(())
    assert list(worker.consumer.queues) == ["agent.coder"]


def test_queues_of_agent_to_leave_are_not_resumed(requests: ShutdownRequests, signals: list[int]) -> None:
    worker = Leaving(requests, "agent.coder", "agent.planner")
    worker.left.leave({"coder"})
    note(requests, agent="coder")
    worker.watch.look()
    worker.left.leave(())
    assert (list(worker.consumer.queues), signals) == (["agent.planner"], [])
