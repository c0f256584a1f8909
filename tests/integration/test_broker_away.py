"""A Redis that freezes, ends, cuts connections or cannot be reached: what workers and producers do then."""

import os
import signal
import threading
from pathlib import Path

import pytest
from redis import Redis

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.crew import Crew
from tests.integration.meetings import marks, meet
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def stack(smithy: Crew) -> LocalStack:
    return smithy.stack


def freeze(stack: LocalStack, seconds_of_leases: float) -> None:
    """Freeze Redis for longer than the leases of the stack's workers."""
    os.kill(stack.redis.process.pid, signal.SIGSTOP)
    threading.Event().wait(seconds_of_leases)
    os.kill(stack.redis.process.pid, signal.SIGCONT)


def test_live_call_is_not_deemed_dead_after_outage(smithy: Crew, stack: LocalStack, tmp_path: Path) -> None:
    smithy.muster(2)
    call = meet(stack.client, tmp_path / "a", 2, tool="meeting__async")[0]
    wait_until(lambda: marks(tmp_path / "a") == 1)
    freeze(stack, 4)
    assert call.status() == "running"
    (tmp_path / "a" / "guest").touch()
    result = call.result(PATIENCE)
    assert (result.status, result.meta.attempt) == ("ok", 1)


def test_sigterm_ends_idle_worker_while_redis_is_away(smithy: Crew, stack: LocalStack) -> None:
    [worker] = smithy.muster()
    before = stack.log(worker).count("Connection")
    stack.redis.process.kill()
    stack.redis.process.wait(PATIENCE)
    wait_until(lambda: stack.log(worker).count("Connection") > before, PATIENCE)
    assert "In Celery 5.1" not in stack.log(worker)  # its advice about what we do on purpose
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    stack.redis.launch()


def test_draining_worker_takes_no_new_call_after_reconnection(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster()
    running = meet(stack.client, tmp_path / "a", 2)[0]
    wait_until(lambda: marks(tmp_path / "a") == 1)
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker.draining" in stack.log(worker))
    with Redis.from_url(stack.redis_url) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    waiting = stack.client.submit("smith", "echo__args")
    (tmp_path / "a" / "guest").touch()
    assert worker.wait(PATIENCE) == 0
    assert waiting.status() == "queued"
    smithy.add()
    assert running.result(PATIENCE).status == "ok"
    assert waiting.result(PATIENCE).status == "ok"


def test_worker_comes_back_when_its_connections_were_cut(smithy: Crew, stack: LocalStack) -> None:
    smithy.muster()
    with Redis.from_url(stack.redis_url) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert stack.client.call("smith", "echo__args", {"n": 1}, timeout=PATIENCE).output == {"n": 1}


def test_silent_redis_is_reported_in_bounded_time(smithy: Crew, stack: LocalStack) -> None:
    smithy.muster()
    process = stack.redis.process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
            stack.client.submit("smith", "echo__args")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert stack.client.call("smith", "echo__args", {"n": 1}, timeout=PATIENCE).output == {"n": 1}


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "redis://no-such-host.invalid/0", "unix:///no/such.sock"]
)
def test_wrong_redis_url_is_reported_with_remedy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_CONNECT_TIMEOUT_SECONDS", "0")
    with Client.connect(url, bundle=CALLS_BUNDLE) as client, pytest.raises(BrokerUnreachableError) as raised:
        client.submit("smith", "echo__args")
    assert url in raised.value.message
    assert "GOONDAN_REDIS_URL" in (raised.value.suggestion or "")


def test_password_does_not_show_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_CONNECT_TIMEOUT_SECONDS", "0")
    url = "redis://:hush@127.0.0.1:1/0"
    with Client.connect(url, bundle=CALLS_BUNDLE) as client, pytest.raises(BrokerUnreachableError) as raised:
        client.submit("smith", "echo__args")
    assert "hush" not in str(raised.value)


def test_url_that_names_no_redis_is_configuration_error() -> None:
    with pytest.raises(ConfigError, match="GOONDAN_REDIS_URL"):
        Client.connect("http://localhost")
