"""Every part of a system follows a master with two replicas that three Sentinels watch."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker_config.connections import connect, retrying
from broker_config.settings import Settings
from goondan_tasks.cli.session import require_broker
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT
from tests.faults.handler_log import HandlerLog
from tests.faults.proxied import ElsewhereStack
from tests.faults.reckoning import Reckoning
from tests.faults.replicated import (
    PASSWORD,
    SERVICE,
    Replicated,
    Sentinels,
    control,
    crowd_through,
    replicated,
    sentinels,
)
from tests.faults.work import submit_work, work_args
from tests.integration.flower_process import flower, page
from tests.waiting import wait_until
from workers.processes import lease_guard, lease_guard_process

pytestmark = pytest.mark.faults

PATIENCE = 60


@pytest.fixture(scope="module")
def servers() -> Iterator[Replicated]:
    with replicated(2) as servers:
        yield servers


@pytest.fixture(scope="module")
def watch(servers: Replicated) -> Iterator[Sentinels]:
    with sentinels(servers, 3) as watch:
        yield watch


@pytest.fixture(scope="module")
def stack(watch: Sentinels) -> Iterator[LocalStack]:
    with ElsewhereStack(watch.url(), LOAD_BUNDLE, workers=2, environment=ENVIRONMENT) as stack:
        yield stack


def command(url: str, *words: str) -> str:
    """Run a command and return its output."""
    environment = Settings.environment(redis_url=url, bundle=LOAD_BUNDLE)
    line = [sys.executable, "-m", "goondan_tasks", *words, "--json"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_client_workers_and_command_line_follow_master(
    stack: LocalStack, watch: Sentinels, log: HandlerLog
) -> None:
    begun = submit_work(stack.client, log, number=1, seconds=2.0)
    wait_until(lambda: log.runs_of(1))
    watch.fail_over()
    after = submit_work(stack.client, log, number=2)
    by_async = asyncio.run(
        AsyncClient(stack.client).call(AGENT, "once__async", work_args(log, 3, 0), timeout=PATIENCE)
    )
    called = json.loads(
        command(stack.redis_url, "call", AGENT, "once__sync", json.dumps(work_args(log, 4, 0)))
    )
    assert [begun.result(PATIENCE).status, after.result(PATIENCE).status] == ["ok"] * 2
    assert [by_async.status, called["status"]] == ["ok"] * 2
    assert {number: len(runs) for number, runs in log.runs().items()} == dict.fromkeys((1, 2, 3, 4), 1)
    for worker in stack.workers:
        assert worker.poll() is None
        assert PASSWORD not in stack.log(worker)
        assert "leases.not_kept" not in stack.log(worker)


def test_process_that_keeps_leases_asks_sentinels_for_master(watch: Sentinels) -> None:
    with connect(watch.url()) as redis:
        address = lease_guard_process._address(redis)
    for number in range(2):
        guard = lease_guard.Connection(json.loads(json.dumps(address)), PATIENCE)
        assert guard.run("SET", "kept", number) == "OK"  # a replica would refuse it
        guard.close()
        watch.fail_over()
    with pytest.raises(lease_guard.RedisCommandError, match="knows no such service"):
        lease_guard.Connection({**address, "service": "another"}, PATIENCE)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_failovers_under_load_lose_or_rerun_nothing(
    stack: LocalStack, watch: Sentinels, log: HandlerLog, say: Say
) -> None:
    answers = crowd_through(watch.fail_over, 5, stack, log)
    reckoning = Reckoning(answers, log.runs())
    say(reckoning.lines())
    assert set(reckoning.codes) == {"ok"}
    assert reckoning.run_twice == []
    assert reckoning.wrong_owner == []
    assert all(worker.poll() is None for worker in stack.workers)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_calls_continue_when_replica_replaces_dead_master(log: HandlerLog) -> None:
    with (
        replicated(2) as servers,
        sentinels(servers, 3, down_after=1_500) as watch,
        ElsewhereStack(watch.url(), LOAD_BUNDLE, workers=1, environment=ENVIRONMENT) as stack,
    ):
        begun = submit_work(stack.client, log, number=1, seconds=8.0)
        wait_until(lambda: log.runs_of(1))
        with control(servers.master) as redis:
            assert redis.wait(2, PATIENCE * 1000) == 2  # both replicas know that it has begun
        servers.master.process.kill()
        after = stack.client.call(AGENT, "once__sync", work_args(log, 2, 0), timeout=PATIENCE)
        assert [after.status, begun.result(PATIENCE).status] == ["ok"] * 2
        assert {number: len(runs) for number, runs in log.runs().items()} == {1: 1, 2: 1}
        assert stack.workers[0].poll() is None


def refusal_of(url: str) -> str:
    with pytest.raises(BrokerUnreachableError) as raised:
        require_broker(Settings(redis_url=url))
    assert raised.value.suggestion
    return raised.value.message


def test_sentinels_that_cannot_be_reached_are_named() -> None:
    said = refusal_of(f"sentinel://127.0.0.1:1,127.0.0.1:2/{SERVICE}")
    assert "the Sentinel at 127.0.0.1:1 cannot be reached" in said
    assert "the Sentinel at 127.0.0.1:2 cannot be reached" in said


def test_service_that_no_sentinel_watches_is_named(watch: Sentinels) -> None:
    url = watch.url().replace(f"/{SERVICE}/", "/another/")
    with retrying(math.inf):  # waiting would not help
        assert "watches no service 'another'" in refusal_of(url)


def test_sentinel_that_demands_password_says_where_it_goes(servers: Replicated) -> None:
    with sentinels(servers, 1, more="requirepass hush") as watch:
        wait_until(lambda: "demands a password" in refusal_of(watch.url()), PATIENCE)
        assert "demands a password" in refusal_of(watch.url("?sentinel_password=wrong"))
        with connect(watch.url("?sentinel_password=hush")) as redis:
            assert redis.ping()


def test_redis_and_sentinel_are_told_apart(servers: Replicated, watch: Sentinels) -> None:
    redis = f"127.0.0.1:{servers.master.port}"
    said = refusal_of(f"sentinel://:{PASSWORD}@{redis}/{SERVICE}?sentinel_password={PASSWORD}")
    assert f"the Sentinel at {redis} is no Sentinel but a Redis" in said
    assert "is a Sentinel, which holds no data" in refusal_of(f"redis://127.0.0.1:{watch.ports[0]}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_flower_shows_master_queues_despite_lost_sentinel(stack: LocalStack, watch: Sentinels) -> None:
    with flower(stack.redis_url) as url:
        watch.fail_over()
        watch.processes[2].kill()
        assert watch.processes[2].wait(PATIENCE)
        wait_until(lambda: f"agent.{AGENT}" in page(f"{url}/broker"), PATIENCE)
