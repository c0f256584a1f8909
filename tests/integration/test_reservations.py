"""What workers reserve: claimed in the same trip, in batches while calls are short, and given back."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from broker_config.process_group import end_processes
from broker_config.settings import Settings
from goondan_tasks.client import PendingCall
from goondan_tasks.ledger.scripts import Scripts
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.crew import Crew
from tests.waiting import wait_until

PATIENCE = 60

RUNNING = "goondan:running:smith"


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with LocalStack(CALLS_BUNDLE, agents=["smith"], workers=0) as stack:
        yield Crew(stack)


@pytest.fixture
def stack(crew: Crew) -> LocalStack:
    """A stack with one worker that has one place."""
    crew.muster(concurrency=1)
    return crew.stack


@pytest.fixture
def redis(stack: LocalStack) -> Iterator[Redis]:
    with Redis.from_url(stack.redis_url) as redis:
        yield redis


def echoes(stack: LocalStack, count: int) -> list[PendingCall]:
    call = {"agentName": "smith", "toolName": "echo__args"}
    return stack.client.submit_many([{**call, "args": {"n": number}} for number in range(count)])


def wait_for_a_backlog(stack: LocalStack, redis: Redis) -> list[PendingCall]:
    """Submit short calls until a worker holds more of them than it has places."""
    calls: list[PendingCall] = []

    def holds_many() -> bool:
        if redis.llen("agent.smith") < 200:
            calls.extend(echoes(stack, 200))
        return redis.zcard(RUNNING) > 20

    wait_until(holds_many, PATIENCE)
    return calls


def obstacle(stack: LocalStack, place: Path) -> PendingCall:
    """Submit a call that lasts until its guest comes."""
    place.mkdir(exist_ok=True)
    return stack.client.submit("smith", "patient__stubborn", {"place": str(place)})


def test_our_calls_are_claimed_without_own_round_trip(stack: LocalStack, redis: Redis) -> None:
    stack.client.call("smith", "echo__args", {}, timeout=PATIENCE)
    with scripts_run(redis) as run:
        for number in range(20):
            stack.client.call("smith", "echo__args", {"n": number}, timeout=PATIENCE)
    scripts = Scripts.read(Settings())
    assert run[scripts.submit.sha] == run[scripts.start.sha] == run[scripts.finish.sha] == 20
    # a worker that stood still asks whether a claim is still its own: some may, where all would have had to
    assert run[scripts.claim.sha] < 10


@contextmanager
def scripts_run(redis: Redis) -> Iterator[Counter[str]]:
    """Count how often each script is run, by its digest."""
    run: Counter[str] = Counter()
    with redis.monitor() as monitor:  # type: ignore[no-untyped-call]
        yield run
        redis.echo("enough")
        for told in monitor.listen():
            name, _, rest = told["command"].partition(" ")
            if name == "ECHO":
                return
            if name == "EVALSHA":
                run[rest.partition(" ")[0]] += 1


def test_calls_behind_long_call_go_to_another_worker(
    crew: Crew, stack: LocalStack, redis: Redis, tmp_path: Path
) -> None:
    wait_for_a_backlog(stack, redis)
    lasting = obstacle(stack, tmp_path / "a")
    others = echoes(stack, 50)
    wait_until(lambda: (tmp_path / "a" / "began").exists(), PATIENCE)
    crew.add(concurrency=1)
    results = [call.result(PATIENCE) for call in others]
    assert {result.status for result in results} == {"ok"}
    assert {result.meta.attempt for result in results} == {1}
    assert lasting.status() == "running"
    (tmp_path / "a" / "guest").touch()
    assert lasting.result(PATIENCE).status == "ok"


def test_stopping_worker_returns_claimed_calls(crew: Crew, stack: LocalStack, redis: Redis) -> None:
    calls = wait_for_a_backlog(stack, redis)
    first = stack.workers[0]
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    assert redis.zcard(RUNNING) == 0
    crew.add(concurrency=1)
    results = [call.result(PATIENCE) for call in calls]
    assert Counter(result.status for result in results) == {"ok": len(calls)}
    assert {result.meta.attempt for result in results} == {1}


def test_thawed_worker_returns_claimed_calls_on_stop(crew: Crew, stack: LocalStack, redis: Redis) -> None:
    calls = wait_for_a_backlog(stack, redis)
    frozen = stack.workers[0]
    frozen.send_signal(signal.SIGSTOP)
    frozen.send_signal(signal.SIGTERM)
    frozen.send_signal(signal.SIGCONT)
    assert frozen.wait(PATIENCE) == 0
    crew.add(concurrency=1)
    assert {call.result(PATIENCE).status for call in calls} == {"ok"}


def test_claimed_but_unstarted_call_can_be_cancelled(stack: LocalStack, redis: Redis, tmp_path: Path) -> None:
    wait_for_a_backlog(stack, redis)
    lasting = obstacle(stack, tmp_path / "a")
    waiting = [obstacle(stack, tmp_path / str(number)) for number in range(10)]
    for call in waiting:
        call.cancel()
    wait_until(lambda: (tmp_path / "a" / "began").exists(), PATIENCE)
    (tmp_path / "a" / "guest").touch()
    assert lasting.result(PATIENCE).status == "ok"
    errors = [call.result(PATIENCE).error for call in waiting]
    assert [error and error.code for error in errors] == ["E_TOOL_CANCELLED"] * 10
    assert not any((tmp_path / str(number) / "began").exists() for number in range(10))


def wait_until_it_listens(celery: Celery) -> None:
    """Return when the worker hears broadcasts: it does so a moment later than it takes calls."""
    wait_until(lambda: celery.control.ping(timeout=1, limit=1))


def test_call_that_is_revoked_by_celery_is_cancelled(stack: LocalStack, tmp_path: Path) -> None:
    lasting = obstacle(stack, tmp_path / "a")
    wait_until(lambda: (tmp_path / "a" / "began").exists(), PATIENCE)
    revoked = stack.client.submit("smith", "echo__args", {})
    with plain_celery(stack.redis_url) as celery:
        wait_until_it_listens(celery)
        assert celery.control.revoke(revoked.id, reply=True, timeout=PATIENCE, limit=1)
    (tmp_path / "a" / "guest").touch()
    assert lasting.result(PATIENCE).status == "ok"
    result = revoked.result(PATIENCE)
    assert result.error is not None
    assert (result.error.code, result.tool_name) == ("E_TOOL_CANCELLED", "echo__args")


@pytest.mark.parametrize("multiplier", ["0", "4"])
def test_prefetch_multiplier_does_not_reserve_beyond_concurrency(
    crew: Crew, tmp_path: Path, multiplier: str
) -> None:
    crew.muster(0)
    stack, options = crew.stack, ["--concurrency", "2", "--prefetch-multiplier", multiplier]
    command = [sys.executable, "-P", "-m", "celery", "-A", "goondan_tasks", "worker", "-Q", "agent.smith"]
    with (tmp_path / "log").open("wb") as log, plain_celery(stack.redis_url) as celery:
        worker = stack._group.start([*command, *options], env=stack._worker_environment(), output=log)
        try:
            stack._wait_until_ready([worker])
            wait_until_it_listens(celery)
            [told] = (celery.control.inspect(timeout=PATIENCE, limit=1).stats() or {}).values()
        finally:
            end_processes([worker], PATIENCE)
    assert told["prefetch_count"] == 2
