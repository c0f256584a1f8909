"""The orchestrator, on a Redis in memory and with fake processes."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from broker_config.process_identity import this_process
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX, call_queue
from broker_config.settings import Settings
from goondan_tasks.client.status import QueueStatus
from goondan_tasks.contract.calls import identity_of, queue_element
from goondan_tasks.contract.errors import AgentUnavailableError, ToolOutcomeUnknownError
from goondan_tasks.contract.names import DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.oauth.manager import LONGEST_SECONDS
from goondan_tasks.orchestrator.orchestrator import Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import Supervisor
from tests.unit.goondan_tasks.ledger.calls import a_call, claimed, record_of, submit

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
        self.supervisor = Supervisor(self._start, self.settings.grace_seconds, clock=lambda: self.now)
        self.orchestrator = Orchestrator(["coder"], self.fleet, self.supervisor, clock=lambda: self.now)

    def _start(self, agents: Sequence[str]) -> Any:
        assert agents == ("coder",)
        self.started.append(Process(len(self.started) + 1))
        return SimpleNamespace(process=self.started[-1], reason=lambda: "It ended with 1.")

    def queue(self) -> None:
        """Have a call wait in the queue."""
        submit(self.ledger, a_call())

    def say(self, process: Process, place: str = "") -> None:
        """Let a worker say that it takes calls, by default one of this machine."""
        worker = WorkerRecord(
            name=f"w{process.pid}",
            id=f"w{process.pid}",
            pid=process.pid,
            host="a-host-of-many",
            place=place or this_process().place,
            agents=("coder",),
            concurrency=1,
            root_id="root",
            started_at="2026-01-01T00:00:00.000Z",
        )
        self.fleet.agent_registry.publish_worker(worker, 20)

    def fall_silent(self, process: Process) -> None:
        self.fleet.agent_registry.remove_worker(f"w{process.pid}")

    def look(self, seconds: float = 0.0) -> None:
        """Look after so many seconds."""
        self.now += seconds
        self.orchestrator.look()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with fakeredis.FakeRedis() as redis:
        yield Stage(redis)


def test_one_worker_is_started_for_waiting_call(stage: Stage) -> None:
    stage.look()
    assert stage.started == []
    stage.queue()
    for _ in range(3):
        stage.look()
    assert len(stage.started) == 1


def test_dead_last_workers_reservation_starts_new_worker(stage: Stage) -> None:
    stage.queue()
    message = stage.redis.rpop(call_queue("coder"))
    stage.redis.hset(IN_FLIGHT, "tag", b"agent.coder\n" + message)  # type: ignore[operator]
    stage.redis.zadd(IN_FLIGHT_INDEX, {"tag": stage.redis.time()[0] - stage.settings.lease_seconds - 1})
    stage.look()
    assert stage.redis.lrange(call_queue("coder"), 0, -1) == [b"message"]
    assert len(stage.started) == 1


def test_reservation_of_live_worker_is_left_alone(stage: Stage) -> None:
    stage.redis.hset(IN_FLIGHT, "tag", "agent.coder\nmessage")
    stage.redis.zadd(IN_FLIGHT_INDEX, {"tag": stage.redis.time()[0]})
    stage.look()
    assert stage.redis.llen(call_queue("coder")) == 0


def test_long_silent_worker_is_replaced_not_killed(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [first] = stage.started
    stage.say(first)
    stage.look()
    stage.fall_silent(first)
    stage.look()
    stage.look(stage.supervisor.silent_seconds - 1)
    assert (len(stage.started), first.signals) == (1, [])
    stage.look(2)
    stage.look(1_000)
    assert (len(stage.started), first.signals) == (2, ["TERM"])


def test_worker_that_was_silent_for_while_goes_on(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    for _ in range(3):
        stage.say(worker)
        stage.look()
        stage.fall_silent(worker)
        stage.look(stage.supervisor.silent_seconds - 1)
    assert (stage.started, worker.signals) == ([worker], [])


def test_redis_outage_ends_no_worker_as_silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    stage.say(worker)
    stage.look()
    stage.fall_silent(worker)
    stage.look()
    with monkeypatch.context() as patched:
        patched.setattr(stage.fleet, "look", _away)
        stage.look(stage.supervisor.silent_seconds)
    stage.look(1)
    assert (stage.started, worker.signals) == ([worker], [])


def test_crash_is_counted_once_redis_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.queue()
    stage.look()
    stage.started[0].status = 1
    with monkeypatch.context() as patched:
        patched.setattr(stage.fleet, "workers", _away)
        stage.look()
    stage.look()
    assert stage.fleet.backoffs.read(["coder"])["coder"].crashes == 1


def test_record_of_newer_version_does_not_end_orchestrator(stage: Stage) -> None:
    stage.redis.set(stage.ledger.keys.crash_backoff("coder"), '{"v": 99}')
    stage.queue()
    stage.look()
    assert stage.started == []
    stage.redis.delete(stage.ledger.keys.crash_backoff("coder"))
    stage.look()
    assert len(stage.started) == 1


@pytest.mark.parametrize("kind", ["string", "list"])
def test_damaged_record_keeps_no_worker_from_being_started(stage: Stage, kind: str) -> None:
    key = stage.ledger.keys.crash_backoff("coder")
    stage.redis.set(key, '{"v": 1, "cra') if kind == "string" else stage.redis.rpush(key, "odd")
    stage.queue()
    stage.look()
    assert len(stage.started) == 1


def claimed_by(stage: Stage, row: str) -> str:
    """Have the worker of a row begin a call, with an hour's lease; return the call's id."""
    call = a_call(tool_call_id=row)
    submit(stage.ledger, call)
    token = f"{row}-1"
    request = ClaimRequest(identity_of(call), call, row, ClaimTerms(), token)
    stage.ledger.claim(request).run(stage.redis)
    stage.ledger.start([(identity_of(call), token)]).run(stage.redis)
    return identity_of(call)


@pytest.mark.parametrize("status", [0, -9])
def test_workers_leftovers_are_settled_once_process_ends(stage: Stage, status: int) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    stage.say(worker)
    stage.look()
    call_id = claimed_by(stage, "w1")
    stage.redis.hset(IN_FLIGHT, "w1:0:1:000", "agent.coder\nreserved")
    stage.redis.zadd(IN_FLIGHT_INDEX, {"w1:0:1:000": stage.redis.time()[0]})
    stage.look()
    assert record_of_id(stage, call_id) == "running"

    worker.status = status
    stage.fall_silent(worker)  # it is known even if its record is gone
    stage.look()

    assert code_of(stage.ledger, call_id) == ToolOutcomeUnknownError.code
    assert stage.redis.lrange(call_queue("coder"), 0, -1)[-1] == b"reserved"


def test_worker_told_to_stop_leaves_nothing_behind(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    stage.say(worker)
    stage.look()
    call_id = claimed_by(stage, "w1")
    stage.orchestrator.restart()
    stage.look()
    assert record_of_id(stage, call_id) == "running"

    worker.status = -9
    stage.look()

    assert code_of(stage.ledger, call_id) == ToolOutcomeUnknownError.code
    assert stage.fleet.backoffs.read(["coder"])["coder"].crashes == 0


def test_worker_of_same_number_elsewhere_keeps_its_calls(stage: Stage) -> None:
    stage.queue()
    stage.look()
    [worker] = stage.started
    stage.say(worker, place="another machine")
    call_id = claimed_by(stage, "w1")
    worker.status = -9

    stage.look()

    assert record_of_id(stage, call_id) == "running"
    assert [one.id for one in stage.fleet.workers()] == ["w1"]


def record_of_id(stage: Stage, call_id: str) -> str:
    [record] = stage.ledger.records([call_id])
    return "" if record is None else record.status


def _away(*_: object) -> Any:
    raise RedisConnectionError("gone")


@pytest.mark.parametrize(("apps", "seconds"), [({}, 5), ({"slack-bot": None}, 5 + LONGEST_SECONDS)])
def test_workers_with_oauth_apps_may_drain_longer(apps: dict[str, None], seconds: float) -> None:
    bundle: Any = SimpleNamespace(oauth_apps=apps)

    assert patience_of(Settings(grace_seconds=5), bundle) == seconds


class Log:
    """Notes the names of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.events.append(event)

    debug = info = error = warning


class SharedStage:
    """An orchestrator whose three agents share a worker; time passes as the test says."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.now = redis, 1_000.0
        names = ("coder", "reader", "writer")
        self.records = [replace_name(CODER, name) for name in names]
        self.fleet = Fleet(redis, Settings(grace_seconds=5), self.records, "orchestrator")
        self.started: list[tuple[tuple[str, ...], Process]] = []
        self.supervisor = Supervisor(self._start, 5, clock=lambda: self.now)
        self.orchestrator = self.made(names)

    def made(self, names: Sequence[str]) -> Orchestrator:
        rules = Rules(is_always_needed=True, are_together=True)
        return Orchestrator(names, self.fleet, self.supervisor, rules=rules, clock=lambda: self.now)

    def _start(self, agents: Sequence[str]) -> Any:
        self.started.append((tuple(agents), Process(len(self.started) + 1)))
        return SimpleNamespace(process=self.started[-1][1], reason=lambda: "It ended with 1.")

    @property
    def running(self) -> list[tuple[str, ...]]:
        return [agents for agents, process in self.started if process.status is None and not process.signals]

    def announce(self) -> None:
        """Let all running workers say that they take calls."""
        for agents, process in self.started:
            if process.status is None:
                worker = WorkerRecord(
                    name=f"w{process.pid}",
                    id=f"w{process.pid}",
                    pid=process.pid,
                    host="a-host-of-many",
                    place=this_process().place,
                    agents=agents,
                    concurrency=1,
                    root_id="root",
                    started_at="2026-01-01T00:00:00.000Z",
                )
                self.fleet.agent_registry.publish_worker(worker, 20)

    def crash(self) -> None:
        """Crash the latest worker, and look."""
        self.started[-1][1].status = 1
        self.orchestrator.look()


def replace_name(agent: AgentRecord, name: str) -> AgentRecord:
    return agent.model_copy(update={"name": name})


@pytest.fixture
def shared() -> Iterator[SharedStage]:
    with fakeredis.FakeRedis() as redis:
        yield SharedStage(redis)


def test_agents_sharing_worker_use_one_process(shared: SharedStage) -> None:
    for _ in range(3):
        shared.orchestrator.look()
    assert shared.running == [("coder", "reader", "writer")]
    assert not shared.orchestrator.are_served()
    shared.announce()
    shared.orchestrator.look()
    assert shared.orchestrator.are_served()
    assert len(shared.started) == 1


def test_repeated_shared_crashes_give_agents_own_workers(shared: SharedStage) -> None:
    shared.orchestrator.look()
    shared.crash()
    assert shared.running == [("coder", "reader", "writer")]
    shared.crash()
    assert shared.running == [("coder",), ("reader",), ("writer",)]
    for _ in range(4):  # only the crashing one is started again, until it is paused
        shared.started[-1][1].status = 1
        shared.orchestrator.look()
    assert shared.running == [("coder",), ("reader",)]
    assert [agents for agents, _ in shared.started[5:]] == [("writer",)] * 2


def test_added_agent_gets_worker_removed_agent_ends_shared_worker(shared: SharedStage) -> None:
    shared.orchestrator = shared.made(["coder", "reader"])
    shared.orchestrator.look()
    shared.announce()
    shared.orchestrator = shared.made(["coder", "reader", "writer"])
    shared.orchestrator.restart(is_whole=False)
    shared.orchestrator.look()
    assert shared.running == [("coder", "reader"), ("writer",)]
    shared.orchestrator = shared.made(["coder", "writer"])
    shared.orchestrator.restart(is_whole=False)
    shared.orchestrator.look()
    assert shared.running == [("writer",), ("coder",)]
    assert shared.started[0][1].signals == ["TERM"]


class AbsentFleet:
    """A fleet without agents, whose Redis may be away."""

    is_away = False

    def look(self, _agents: object) -> object:
        if self.is_away:
            raise RedisConnectionError("refused")
        return SimpleNamespace(backoffs={})


def test_outage_and_its_end_are_logged_once() -> None:
    log, fleet = Log(), AbsentFleet()
    members = SimpleNamespace(ended=list, present={}, members=[])
    orchestrator = Orchestrator((), cast(Any, fleet), cast(Any, members), log=cast(Any, log))

    for fleet.is_away in (False, True, True, True, False, False, True):
        orchestrator.look()

    assert log.events == ["orchestrator.redis_away", "orchestrator.redis_back", "orchestrator.redis_away"]


NOTHING = QueueStatus(agent="coder", queue="agent.coder", backlog=0, running=0)
OUTSIDER = AgentRecord(name="coder", swarm="s", workspace="w", has_entry=False)
ERROR = AgentUnavailableError("no luck")


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings())


@pytest.fixture
def fleet(redis: Redis) -> Fleet:
    return fleet_of(redis, CODER)


def fleet_of(redis: Redis, agent: AgentRecord, **settings: Any) -> Fleet:
    return Fleet(redis, Settings(**settings), [agent], "orchestrator")


def code_of(ledger: Ledger, call_id: str) -> str | None:
    result = ledger.result(call_id)
    return result.error.code if result and result.error else None


def test_waiting_calls_fail_while_running_call_continues(ledger: Ledger, fleet: Fleet) -> None:
    running, waiting = a_call(), a_call(tool_call_id="call_2")
    submit(ledger, running)
    claimed(ledger, running)
    submit(ledger, waiting)

    assert fleet.queued_ids("coder") == [identity_of(waiting)]
    assert fleet.end_queued("coder", ERROR) == 1
    assert code_of(ledger, identity_of(waiting)) == "E_AGENT_UNAVAILABLE"
    assert record_of(ledger, running).status == "running"
    assert fleet.end_queued("coder", ERROR) == 0


def test_cancelled_call_ends_as_cancelled(ledger: Ledger, fleet: Fleet) -> None:
    call = a_call()
    submit(ledger, call)
    ledger.cancel(identity_of(call), "somebody").run(ledger.redis)

    assert fleet.end_queued("coder", ERROR) == 0


@pytest.mark.parametrize(
    ("agent", "tool", "ended"),
    [(CODER, DELEGATE_TOOL, 1), (CODER, EVENT_TOOL, 0), (OUTSIDER, DELEGATE_TOOL, 0)],
)
def test_request_ends_unless_brain_is_elsewhere_event_stays(
    redis: Redis, ledger: Ledger, agent: AgentRecord, tool: str, ended: int
) -> None:
    fleet = fleet_of(redis, agent)
    call = a_call().model_copy(update={"tool_name": tool})
    submit(ledger, call)

    assert [fleet.end_queued("coder", ERROR) for _ in range(2)] == [ended, 0]


def test_call_ended_in_queue_is_no_finished_run(ledger: Ledger, fleet: Fleet) -> None:
    submit(ledger, a_call())
    fleet.end_queued("coder", ERROR)

    assert not fleet.has_finished_run("coder", 0)


def test_finished_run_is_found_whatever_its_outcome(ledger: Ledger, fleet: Fleet) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.finish(claim, claim.run.ok("done", claim.run.clock()), None).run(ledger.redis)

    finished_at = record_of(ledger, a_call()).finished_at or 0
    assert fleet.has_finished_run("coder", finished_at)
    assert not fleet.has_finished_run("coder", finished_at + 1)


def test_finished_run_is_seen_behind_waiting_calls(ledger: Ledger, fleet: Fleet) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.finish(claim, claim.run.ok("done", claim.run.clock()), None).run(ledger.redis)
    for number in range(2, 62):
        submit(ledger, a_call(tool_call_id=f"call_{number}"))

    assert fleet.has_finished_run("coder", 0)


def test_call_ended_by_death_is_no_finished_run(ledger: Ledger, fleet: Fleet) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.start([claim.id_and_token]).run(ledger.redis)
    Reaper(ledger, "").fail(claim, ToolOutcomeUnknownError("its worker died"))

    assert not fleet.has_finished_run("coder", 0)


def test_only_messages_of_ended_calls_are_removed(ledger: Ledger, fleet: Fleet, redis: Redis) -> None:
    waiting = a_call(tool_call_id="call_2")
    submit(ledger, a_call())
    fleet.end_queued("coder", ERROR)
    submit(ledger, waiting)
    redis.delete(call_queue("coder"))
    for call in (a_call(), waiting):
        redis.lpush(call_queue("coder"), queue_element(identity_of(call), call, b"{}"))
    redis.lpush(call_queue("coder"), "no message at all")

    fleet.tidy_queues("coder")

    left = redis.lrange(call_queue("coder"), 0, -1)
    assert [identity_of(waiting).encode() in message for message in left] == [False, True]


def test_every_key_has_time_to_live(ledger: Ledger, fleet: Fleet, redis: Redis) -> None:
    submit(ledger, a_call())
    fleet.end_queued("coder", ERROR)

    ours = list(redis.scan_iter(f"{Keys().namespace}:*"))
    assert ours
    assert all(redis.ttl(key) > 0 for key in ours)
