"""A worker's beat, and what it does about the revision that it lacks."""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fakeredis
import pytest
import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.fleet.agent_registry import AgentRegistry, WorkerRecord
from goondan_tasks.fleet.pauses import Pause, Paused
from tests.unit.workers.pool.fake_consumer import Consumer
from workers.pool.consumed_queues import PausedQueues
from workers.pool.heartbeat import LOAD_SECONDS, Heartbeat

RECORD = WorkerRecord(
    name="w", pid=1, host="here", agents=("lizard",), concurrency=1, root_id="root", started_at="x"
)


class Beating:
    """A worker of lizard and newt, without Redis: what it says of itself is written down."""

    def __init__(self) -> None:
        self.consumer = Consumer("agent.lizard", "agent.newt")
        self.left = PausedQueues(self.consumer)
        self.active = SimpleNamespace(ref="r1", registry=SimpleNamespace(version=1))
        self.standby = SimpleNamespace(look=lambda: None, agents=frozenset[str](), is_over=False)
        self.said: list[WorkerRecord] = []
        self.pauses = Paused()
        self.shutdowns: Any = SimpleNamespace(look=lambda: None)
        self.heartbeat = Heartbeat(self.consumer)
        self.heartbeat._published = "r1", 1
        self.heartbeat._paused = self.left
        nothing = SimpleNamespace(sweep=lambda _: None, look=lambda *_: None)
        self.runtime: Any = SimpleNamespace(
            revisions=SimpleNamespace(active=self.active, served=("lizard", "newt")),
            pauses=SimpleNamespace(read_and_keep=lambda: self.pauses),
            agent_registry=SimpleNamespace(publish_worker=lambda record, _: self.said.append(record)),
            standby=self.standby,
            children=SimpleNamespace(limit=1),
            publish_counts=lambda _: None,
            delivery=SimpleNamespace(ledger=SimpleNamespace(keys=Keys())),
            settings=Settings(),
            limiter=SimpleNamespace(look=lambda: None, paused=Paused()),
            **dict.fromkeys(("reaper", "collector"), nothing),
        )

    def beat(self) -> None:
        """Say that it lives."""
        self.heartbeat._beat(self.runtime, RECORD, self.consumer, self.shutdowns)


def test_worker_still_serves_its_standby_agents() -> None:
    worker = Beating()
    worker.standby.agents = frozenset({"newt"})
    worker.heartbeat._update_standby(worker.runtime, worker.left, worker.beat)
    worker.beat()
    assert list(worker.consumer.queues) == ["agent.lizard"]
    assert [record.agents for record in worker.said] == [("lizard", "newt")]


def test_worker_waits_once_for_models_before_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.pool.heartbeat.require_agents", lambda *_: None)
    worker, steps = Beating(), list[object]()
    worker.runtime.serve = lambda *agents: steps.append(agents)
    worker.active.bundle = None
    worker.active.models = SimpleNamespace(is_warm=lambda seconds: steps.append(seconds))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):  # the second time after a reconnection
            worker.heartbeat._make_ready(worker.runtime, RECORD)
    assert steps == [("lizard",), LOAD_SECONDS]
    assert "worker.models_still_load" in {entry["event"] for entry in logs}


def test_worker_leaves_paused_agent_until_resumed() -> None:
    worker = Beating()
    worker.pauses = Paused({"newt": Pause(agent="newt", reason="it loops", by="ann")})

    with structlog.testing.capture_logs() as logs:
        worker.beat()
        assert list(worker.consumer.queues) == ["agent.lizard"]
        assert worker.said[-1].agents == ("lizard", "newt")
        worker.beat()
        worker.pauses = Paused()
        worker.beat()

    assert set(worker.consumer.queues) == {"agent.lizard", "agent.newt"}
    told = [(line["event"], line["agent"]) for line in logs if line["event"].startswith("agent.")]
    assert told == [("agent.paused", "newt"), ("agent.resumed", "newt")]


def test_worker_that_drains_takes_no_resumed_agent() -> None:
    worker = Beating()
    worker.pauses = Paused({"newt": Pause(agent="newt")})
    worker.beat()
    worker.standby.is_over, worker.pauses = True, Paused()

    worker.beat()

    assert list(worker.consumer.queues) == ["agent.lizard"]


def test_worker_announces_other_revision_at_once() -> None:
    worker = Beating()
    worker.heartbeat._update_standby(worker.runtime, worker.left, worker.beat)
    assert worker.said == []
    worker.heartbeat._published = "r0", 1
    worker.heartbeat._update_standby(worker.runtime, worker.left, lambda: worker.said.append(RECORD))
    assert worker.said == [RECORD]


def test_unpublished_agents_are_published_with_next_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, published = Beating(), list[object]()
    answers = iter([RedisConnectionError("away"), None])

    def publish(agents: object, *, served: object) -> None:
        published.append(agents)
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr("workers.pool.heartbeat.describe_agents", lambda *_: [])
    monkeypatch.setattr("workers.pool.heartbeat._release_events", lambda *_, **__: None)
    worker.runtime.agent_registry.publish_agents = publish
    worker.active.bundle, worker.heartbeat._published = None, None
    for _ in range(3):
        worker.beat()
    assert published == [[], []]


def test_draining_worker_is_told_once_to_end() -> None:
    worker = Beating()
    worker.left.leave({"newt"})
    worker.standby.is_over = True
    worker.shutdowns.look = lambda: pytest.fail("asked again: that stops it at once")
    worker.beat()
    assert len(worker.said) == 1


def test_worker_says_how_many_places_it_has_now() -> None:
    worker = Beating()
    worker.consumer.pool = SimpleNamespace(limit=5, intake=SimpleNamespace(renew=lambda: None))
    worker.beat()
    assert [record.concurrency for record in worker.said] == [5]
    assert worker.runtime.children.limit == 5


@pytest.mark.parametrize("fault", [OutOfMemoryError("full"), ValueError("year 33658 is out of range")])
def test_schedule_fault_stops_no_other_heartbeat_step(fault: Exception) -> None:
    worker, steps = Beating(), list[str]()
    worker.consumer.pool = SimpleNamespace(
        limit=1, intake=SimpleNamespace(renew=lambda: steps.append("messages are renewed"))
    )
    worker.runtime.collector = SimpleNamespace(look=lambda *_: steps.append("instances are looked at"))
    look = mock.Mock(side_effect=fault)
    worker.heartbeat._schedules = mock.Mock(look=look)

    with nullcontext() if isinstance(fault, RedisError) else pytest.raises(type(fault)):
        worker.beat()

    look.assert_called_once_with()
    assert steps == ["messages are renewed", "instances are looked at"]


def test_each_cause_of_failed_heartbeats_is_logged_once() -> None:
    worker = Beating()
    full, away = OutOfMemoryError("full"), RedisConnectionError("away")
    worker.shutdowns.look = mock.Mock(side_effect=[full, full, away, away, None, away])
    with structlog.testing.capture_logs() as logs:
        for _ in range(6):
            worker.beat()
    assert [line["reason"] for line in logs] == ["full", "away", "away"]


@pytest.fixture
def agent_registry() -> Iterator[AgentRegistry]:
    with fakeredis.FakeRedis() as redis:
        yield AgentRegistry(redis, Keys("goondan"))


def joins(agent_registry: AgentRegistry, **fields: Any) -> None:
    """Let a worker of lizard in workspace terrarium join, with other fields if they are given."""
    known = {"id": fields.get("name", "w"), "workspace": "terrarium", "swarm": "reptiles"}
    record = RECORD.model_copy(update={**known, **fields})
    Heartbeat(Consumer("agent.lizard"))._join(SimpleNamespace(agent_registry=agent_registry), record)  # type: ignore[arg-type]
    agent_registry.publish_worker(record, 20)


def test_agents_second_workspace_is_refused_without_row(agent_registry: AgentRegistry) -> None:
    joins(agent_registry)

    with pytest.raises(ConfigError) as refused:
        joins(agent_registry, name="late", workspace="aquarium", swarm="fish", local_workdir=("lizard",))

    assert refused.value.message == (
        "Worker w serves agent 'lizard' in workspace 'terrarium' (swarm 'reptiles'); this one would in "
        "workspace 'aquarium' (swarm 'fish'): their instances would not share their files."
    )
    assert "GOONDAN_REDIS_URL" in refused.value.suggestion
    assert "GOONDAN_WORKSPACE" in refused.value.suggestion
    assert [worker.name for worker in agent_registry.workers()] == ["w"]
    anybody = RECORD.model_copy(update={"id": "anybody", "agents": ()})
    assert [worker.name for worker in agent_registry.join(anybody, 20)] == ["w"]
    joins(agent_registry, name="same", swarm="fish")


@pytest.mark.parametrize("name", ["w", "late"])
def test_second_state_root_is_refused_under_any_name(agent_registry: AgentRegistry, name: str) -> None:
    joins(agent_registry)

    with pytest.raises(ConfigError, match="serves agent 'lizard' from another state root"):
        joins(agent_registry, name=name, id="late", root_id="other")
    joins(agent_registry, name=name, id="late", root_id="other", local_workdir=("lizard",))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (None, "git:1", "This worker follows the revisions of its bundle, and worker w"),
        ("git:1", None, "This worker does not follow the revisions of its bundle, and worker w"),
    ],
)
def test_other_follow_policy_is_refused_without_row(
    agent_registry: AgentRegistry, first: str | None, second: str | None, told: str
) -> None:
    joins(agent_registry, bundle_ref=first)

    with pytest.raises(ConfigError, match=told) as refused:
        joins(agent_registry, name="late", bundle_ref=second, agents=("newt",))

    assert "stop all of them before you start new ones" in refused.value.suggestion
    assert [worker.name for worker in agent_registry.workers()] == ["w"]
    joins(agent_registry, name="same", bundle_ref=first and "git:2")
    joins(agent_registry, name="away", bundle_ref=second, agents=("newt",), workspace="aquarium")


def test_workspace_without_live_workers_blocks_no_worker(agent_registry: AgentRegistry) -> None:
    joins(agent_registry)
    agent_registry.remove_worker("w")

    joins(agent_registry, workspace="aquarium", root_id="other")
    joins(agent_registry, name="newt", agents=("newt",), workspace="terrarium")
    joins(agent_registry, name="older", workspace="", swarm="", root_id="other")


def test_swarms_sharing_workspace_and_agent_cause_warning(agent_registry: AgentRegistry) -> None:
    joins(agent_registry)

    with structlog.testing.capture_logs() as logs:
        joins(agent_registry, name="late", swarm="fish")
        joins(agent_registry, name="newt", swarm="fish", agents=("newt",))

    assert [(line["event"], line["worker"], line["swarm"]) for line in logs] == [
        ("worker.other_swarm", "w", "reptiles")
    ]
