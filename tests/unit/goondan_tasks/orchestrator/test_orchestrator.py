"""What an orchestrator does about its workers, on a Redis in memory and with processes of nothing."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.in_flight import IN_FLIGHT, IN_FLIGHT_INDEX
from broker_config.queues import call_queue
from broker_config.settings import Settings
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.oauth.refresh import LONGEST_SECONDS
from goondan_tasks.orchestrator.fleet import Fleet
from goondan_tasks.orchestrator.members import Members, patience_of
from goondan_tasks.orchestrator.orchestrator import Orchestrator
from goondan_tasks.roster import AgentRecord, WorkerRecord
from tests.unit.goondan_tasks.ledger.calls import a_call, submit

CODER = AgentRecord(name="coder", swarm="s", workspace="w", has_entry=True)


class Process:
    """A process of which is written down what is done to it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.signals: list[str] = []

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.signals.append("TERM")

    def send_signal(self, number: int) -> None:
        self.signals.append(str(number))


class Stage:
    """An orchestrator of one agent; time passes as the test says."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.settings = Settings(grace_seconds=5)
        self.ledger = Ledger(redis, self.settings)
        self.started: list[Process] = []
        self.now = 1_000.0
        self.fleet = Fleet(redis, self.settings, [CODER], "orchestrator")
        self.members = Members(self._start, self.settings.grace_seconds, clock=lambda: self.now)
        self.orchestrator = Orchestrator(["coder"], self.fleet, self.members, clock=lambda: self.now)

    def _start(self, agent: str) -> Any:
        del agent
        self.started.append(Process(len(self.started) + 1))
        return SimpleNamespace(process=self.started[-1], reason=lambda: "It ended with 1.")

    def queue(self) -> None:
        """Have a call wait in the queue."""
        submit(self.ledger, a_call())

    def say(self, process: Process) -> None:
        """Let a worker say that it takes calls."""
        worker = WorkerRecord(
            name=f"w{process.pid}",
            pid=process.pid,
            host=socket.gethostname(),
            agents=("coder",),
            concurrency=1,
            root_id="root",
            started_at="2026-01-01T00:00:00.000Z",
        )
        self.fleet.roster.publish_worker(worker, 20)

    def fall_silent(self, process: Process) -> None:
        self.fleet.roster.remove_worker(f"w{process.pid}")

    def look(self, seconds: float = 0.0) -> None:
        """Look after so many seconds."""
        self.now += seconds
        self.orchestrator.look()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with fakeredis.FakeRedis() as redis:
        yield Stage(redis)


def test_one_worker_is_started_for_what_waits(stage: Stage) -> None:
    stage.look()
    assert stage.started == []
    stage.queue()
    for _ in range(3):
        stage.look()
    assert len(stage.started) == 1


def test_what_the_last_worker_had_reserved_when_it_died_has_a_worker_started(stage: Stage) -> None:
    stage.queue()
    message = stage.redis.rpop(call_queue("coder"))
    stage.redis.hset(IN_FLIGHT, "tag", b"agent.coder\n" + message)  # type: ignore[operator]
    stage.redis.zadd(IN_FLIGHT_INDEX, {"tag": stage.redis.time()[0] - stage.settings.lease_seconds - 1})
    stage.look()
    assert stage.redis.lrange(call_queue("coder"), 0, -1) == [b"message"]
    assert len(stage.started) == 1


def test_what_a_live_worker_has_reserved_is_left_to_it(stage: Stage) -> None:
    stage.redis.hset(IN_FLIGHT, "tag", "agent.coder\nmessage")
    stage.redis.zadd(IN_FLIGHT_INDEX, {"tag": stage.redis.time()[0]})
    stage.look()
    assert stage.redis.llen(call_queue("coder")) == 0


def test_a_worker_that_is_silent_for_long_is_replaced_and_not_killed(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [first] = stage.started
    stage.say(first)
    stage.look()
    stage.fall_silent(first)
    stage.look()
    stage.look(stage.members.silent_seconds - 1)
    assert (len(stage.started), first.signals) == (1, [])
    stage.look(2)
    stage.look(1_000)
    assert (len(stage.started), first.signals) == (2, ["TERM"])


def test_a_worker_that_was_silent_for_a_while_goes_on(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    for _ in range(3):
        stage.say(worker)
        stage.look()
        stage.fall_silent(worker)
        stage.look(stage.members.silent_seconds - 1)
    assert (stage.started, worker.signals) == ([worker], [])


def test_nobody_is_silent_while_redis_is_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    stage.say(worker)
    stage.look()
    stage.fall_silent(worker)
    stage.look()
    with monkeypatch.context() as patched:
        patched.setattr(stage.fleet, "look", _away)
        stage.look(stage.members.silent_seconds)
    stage.look(1)
    assert (stage.started, worker.signals) == ([worker], [])


def test_a_crash_is_counted_once_redis_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.queue()
    stage.look()
    stage.started[0].status = 1
    with monkeypatch.context() as patched:
        patched.setattr(stage.fleet, "workers", _away)
        stage.look()
    stage.look()
    assert stage.fleet.upkeep.read(["coder"])["coder"].crashes == 1


def test_a_record_of_a_newer_version_does_not_end_the_orchestrator(stage: Stage) -> None:
    stage.redis.set(stage.ledger.keys.upkeep("coder"), '{"v": 99}')
    stage.queue()
    stage.look()
    assert stage.started == []
    stage.redis.delete(stage.ledger.keys.upkeep("coder"))
    stage.look()
    assert len(stage.started) == 1


def _away(*_: object) -> Any:
    raise RedisConnectionError("gone")


@pytest.mark.parametrize(("apps", "seconds"), [({}, 5), ({"slack-bot": None}, 5 + LONGEST_SECONDS)])
def test_workers_of_a_bundle_with_oauth_apps_may_take_longer_to_drain_for_a_refresh(
    apps: dict[str, None], seconds: float
) -> None:
    bundle: Any = SimpleNamespace(oauth_apps=apps)

    assert patience_of(Settings(grace_seconds=5), bundle) == seconds
