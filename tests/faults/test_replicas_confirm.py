"""With ``GOONDAN_WAIT_REPLICAS``, what was acknowledged survives the death of the master."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from broker_config.embedded import HOST
from goondan_tasks.cli.session import require_broker
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import BrokerUnreachableError, UnconfirmedError
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT, Crowd
from tests.faults.handler_log import HandlerLog
from tests.faults.proxied import ElsewhereStack
from tests.faults.proxy import Proxy
from tests.faults.reckoning import UNKNOWN, Reckoning
from tests.faults.replicated import PASSWORD, SYNC_SECONDS, Replicated, control, replicated
from tests.faults.replication_link import ReplicationLink
from tests.faults.work import mixed_work, submit_work, work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
CONFIRMED = {**ENVIRONMENT, "GOONDAN_WAIT_REPLICAS": "1", "GOONDAN_WAIT_SECONDS": "0.3"}
#: bytes of the replication stream that a replica lacks when its master dies
LAG_BYTES = 3_000


@pytest.fixture(scope="module")
def servers() -> Iterator[Replicated]:
    with replicated(1) as servers:
        yield servers


@pytest.fixture(scope="module")
def stack(servers: Replicated) -> Iterator[LocalStack]:
    with ElsewhereStack(servers.master.url, LOAD_BUNDLE, workers=1, environment=CONFIRMED) as stack:
        yield stack


@pytest.fixture
def hasty(stack: LocalStack) -> Iterator[Client]:
    """A producer that waits for no replica."""
    settings = stack.client.settings.model_copy(update={"wait_replicas": 0})
    with Client(settings) as client:
        yield client


@contextmanager
def frozen(servers: Replicated) -> Iterator[None]:
    replica = servers.servers[1]
    replica.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        replica.process.send_signal(signal.SIGCONT)


def waits(redis: Redis) -> int:
    """Return how often the server was asked to wait for replicas."""
    found: dict[str, dict[str, int]] = redis.info("commandstats")
    return found.get("cmdstat_wait", {"calls": 0})["calls"]


def submit(client: Client, log: HandlerLog, number: int, tool: str = "once__sync") -> PendingCall:
    """Submit a call with an identity of its own."""
    return client.submit(
        AGENT, tool, work_args(log, number, 0), tool_call_id=f"call-{number}", turn_id="turn-confirmed"
    )


def test_calls_are_confirmed_and_run_while_replica_follows(
    stack: LocalStack, servers: Replicated, log: HandlerLog
) -> None:
    with control(servers.master) as redis:
        before = waits(redis)
        assert submit_work(stack.client, log, number=1).result(PATIENCE).status == "ok"
        wait_until(lambda: waits(redis) >= before + 3)  # for the call, its mark and its result


def test_producer_without_replica_wait_never_asks_for_confirmation(
    stack: LocalStack, servers: Replicated, hasty: Client, log: HandlerLog
) -> None:
    worker = stack.workers[0]
    worker.send_signal(signal.SIGSTOP)
    with control(servers.master) as redis:
        before = waits(redis)
        pending = submit_work(hasty, log, number=1)
        assert waits(redis) == before
    worker.send_signal(signal.SIGCONT)
    assert pending.result(PATIENCE).status == "ok"


def test_submission_to_frozen_replica_reports_accepted_call(
    stack: LocalStack, servers: Replicated, log: HandlerLog
) -> None:
    with frozen(servers):
        with pytest.raises(
            UnconfirmedError, match=r"0 of 1 replicas have confirmed it within 0\.3 s"
        ) as first:
            submit(stack.client, log, 1)
        [pending] = first.value.calls
        assert first.value.code == "E_NOT_CONFIRMED"
        assert pending.id in first.value.message
        # the call is known by now, and still no replica has it
        with pytest.raises(UnconfirmedError), Client(stack.client.settings) as another:
            submit(another, log, 1)
        assert pending.status() in {"queued", "running"}
        assert log.runs_of(1) == []
    assert submit(stack.client, log, 1).id == pending.id
    assert pending.result(PATIENCE).status == "ok"
    assert len(log.runs_of(1)) == 1


def test_error_about_many_calls_has_all_their_handles(
    stack: LocalStack, servers: Replicated, log: HandlerLog
) -> None:
    calls = [
        {"agentName": AGENT, "toolName": "again__async", "args": work_args(log, number, 0)}
        for number in range(3)
    ]
    with frozen(servers), pytest.raises(UnconfirmedError, match=r"3 calls, from .* were accepted") as raised:
        stack.client.submit_many(calls)
    assert [pending.result(PATIENCE).status for pending in raised.value.calls] == ["ok"] * 3


def test_request_to_agent_is_confirmed_as_well(stack: LocalStack, servers: Replicated) -> None:
    with frozen(servers), pytest.raises(UnconfirmedError, match="was accepted, but 0 of 1 replicas"):
        stack.client.send(AGENT, {"any": "event"})


@pytest.mark.parametrize("tool", ["once__sync", "once__async", "once__limited"])
def test_handler_waits_until_replica_knows_its_start(
    stack: LocalStack, servers: Replicated, hasty: Client, log: HandlerLog, tool: str
) -> None:
    assert submit_work(stack.client, log).result(PATIENCE).status == "ok"  # later ones may take the fast path
    logged = len(stack.log(stack.workers[0]))
    with frozen(servers):
        pending = submit_work(hasty, log, tool, number=1)
        # an earlier result may wait for the replica, too
        wait_until(lambda: waits_for_mark(stack.log(stack.workers[0])[logged:]))
        assert log.runs_of(1) == []
    assert pending.result(PATIENCE).status == "ok"
    assert len(log.runs_of(1)) == 1
    assert waits_for_mark(stack.log(stack.workers[0])[logged:]) == 1


def waits_for_mark(said: str) -> int:
    """Return how often a worker has logged that a mark is not confirmed."""
    return said.count("waits_to_start") + said.count("accepts no commands")


def test_result_counts_though_replica_has_frozen_meanwhile(
    stack: LocalStack, servers: Replicated, log: HandlerLog, tmp_path: Path
) -> None:
    logged = len(stack.log(stack.workers[0]))
    gate = tmp_path / "gate"
    args = {**work_args(log, 1, 0), "gate": str(gate)}
    pending = stack.client.submit(AGENT, "once__held", args)
    wait_until(lambda: log.runs_of(1))
    with frozen(servers):
        gate.touch()
        assert pending.result(PATIENCE).status == "ok"
        wait_until(lambda: "a write that a failover may lose" in stack.log(stack.workers[0])[logged:])


def test_stopping_worker_returns_calls_unconfirmed_by_replicas(
    stack: LocalStack, servers: Replicated, hasty: Client, log: HandlerLog
) -> None:
    other = stack.workers[0]
    other.send_signal(signal.SIGSTOP)
    leaving = stack.start_worker()
    assert submit_work(stack.client, log).result(PATIENCE).status == "ok"  # later ones take the fast path
    with frozen(servers):
        pending = submit_work(hasty, log, number=1)
        wait_until(lambda: "0 of 1 replicas have confirmed it" in stack.log(leaving))
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(PATIENCE / 2) == 0  # which is less than its grace period
        assert pending.status() == "queued"
    stack.stop_worker(leaving)
    other.send_signal(signal.SIGCONT)
    assert pending.result(PATIENCE).status == "ok"
    assert len(log.runs_of(1)) == 1


def test_server_without_append_only_file_is_refused(stack: LocalStack, servers: Replicated) -> None:
    settings = stack.client.settings.model_copy(update={"wait_aof": "on"})
    require_broker(settings)
    with control(servers.master) as redis:
        redis.config_set("appendonly", "no")
        try:
            with pytest.raises(BrokerUnreachableError, match="WAITAOF") as raised:
                require_broker(settings)
        finally:
            redis.config_set("appendonly", "yes")
    assert "unset GOONDAN_WAIT_AOF" in str(raised.value.suggestion)


def test_calls_wait_until_replicas_have_them_on_disk(
    stack: LocalStack, servers: Replicated, log: HandlerLog
) -> None:
    on_disk = {"wait_aof": "on", "wait_seconds": 3.0}
    with Client(stack.client.settings.model_copy(update=on_disk)) as client:
        assert submit_work(client, log, number=1).result(PATIENCE).status == "ok"
        with (
            frozen(servers),
            pytest.raises(UnconfirmedError, match="the master and 0 of 1 replicas have synced"),
        ):
            submit_work(client, log, number=2)


class Deaths:
    """Masters that die while their replica lags; the replica takes their place, and they follow it."""

    def __init__(self, servers: Replicated, name: Proxy, link: ReplicationLink) -> None:
        self._servers = servers
        self._name = name
        self._link = link

    def follow(self) -> None:
        """Let the replica follow the master over the link, and wait until it has its data."""
        self._link.lead_to(self._servers.master.port)
        with control(self._servers.servers[1]) as redis:
            redis.config_set("masterauth", PASSWORD)
            redis.replicaof(HOST, self._link.port)
            wait_until(lambda: redis.info("replication").get("master_link_status") == "up", SYNC_SECONDS)

    def fail_over(self) -> None:
        """Stop the link, kill the master when the replica lacks enough, and let the replica take over."""
        old, new = self._servers.servers
        self._link.stop()
        with control(old) as master, control(new) as replica:
            wait_until(lambda: _offset(master) - _offset(replica) > LAG_BYTES, PATIENCE)
            old.process.kill()
            old.process.wait(PATIENCE)
            self._link.lose()
            replica.replicaof("NO", "ONE")
        self._name.lead_to(new.url)
        old.launch()
        self._servers.servers = [new, old]
        self.follow()


def _offset(redis: Redis) -> int:
    state = redis.info("replication")
    return int(state.get("slave_repl_offset", state["master_repl_offset"]))


@contextmanager
def dying_masters(environment: dict[str, str]) -> Iterator[tuple[LocalStack, Deaths]]:
    with (
        replicated(1) as servers,
        Proxy(servers.master.url) as name,
        ReplicationLink() as link,
        ElsewhereStack(name.url, LOAD_BUNDLE, workers=2, environment=environment) as stack,
    ):
        deaths = Deaths(servers, name, link)
        deaths.follow()
        yield stack, deaths


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dying_masters_with_lagging_replica_lose_or_rerun_nothing(log: HandlerLog, say: Say) -> None:
    with dying_masters(CONFIRMED) as (stack, deaths):
        crowd = Crowd(stack.client, 16, PATIENCE)
        with crowd.at_work(mixed_work(log, random.Random(6), 1.0)) as answers:
            for number in range(1, 7):
                wait_until(partial(crowd_has, crowd, number * 60), PATIENCE)
                deaths.fail_over()
            wait_until(partial(crowd_has, crowd, 420), PATIENCE)
        reckoning = Reckoning(answers, log.runs())
        say(reckoning.lines())
        # a result may be lost with the worker's connection, never a call or its mark
        assert set(reckoning.codes) <= {"ok", UNKNOWN}
        assert reckoning.run_twice == []
        assert reckoning.ok_without_run == []
        assert all(worker.poll() is None for worker in stack.workers)


def crowd_has(crowd: Crowd, calls: int) -> bool:
    return crowd.answered >= calls
