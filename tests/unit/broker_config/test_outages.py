"""Commands are repeated while Redis cannot be reached, and what is said of that."""

import contextvars
import logging
import math
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from unittest.mock import Mock

import pytest
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.connections import PatientRetry, reporting_outages, retrying
from broker_config.refusals import RefusedError, reason_unreachable


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_config.connections.sleep", lambda seconds: None)


class Command:
    """Fails so many times before it succeeds; at some attempts something is called."""

    def __init__(
        self,
        *,
        failures: float,
        at: Mapping[int, Callable[[], object]] | None = None,
        error: type[RedisError] = RedisConnectionError,
    ) -> None:
        self.attempts = 0
        self._failures = failures
        self._at = at or {}
        self._error = error

    def __call__(self) -> str:
        self.attempts += 1
        if self.attempts in self._at:
            self._at[self.attempts]()
        if self.attempts <= self._failures:
            raise self._error("away")
        return "done"


def run(retry: PatientRetry, command: Callable[[], str]) -> str:
    return retry.call_with_retry(command, lambda error: None)


def test_stale_connection_is_replaced_even_without_retries() -> None:
    command = Command(failures=1)
    assert run(PatientRetry("here", 0), command) == "done"
    assert command.attempts == 2


def test_second_failure_without_retry_time_reports_time_tried() -> None:
    command = Command(failures=math.inf)
    with pytest.raises(RedisConnectionError) as raised:
        run(PatientRetry("here", 0), command)
    assert command.attempts == 2
    assert reason_unreachable("redis://h/0", raised.value) == (
        "Redis at redis://h/0 cannot be reached: away; tried for 0.0 s"
    )


def test_inner_block_keeps_retry_time_of_outer_block() -> None:
    command = Command(failures=2000)  # redis-py's backoff alone overflows at 1024
    with retrying(math.inf), reporting_outages():
        assert run(PatientRetry("here", 0), command) == "done"


def test_outages_are_reported_at_once_on_request() -> None:
    command = Command(failures=50)
    with reporting_outages(), pytest.raises(RedisConnectionError):
        run(PatientRetry("here", 60), command)
    assert command.attempts == 2


def test_command_no_longer_needed_is_not_retried() -> None:
    came = threading.Event()
    command = Command(failures=50, at={7: came.set})
    with retrying(math.inf, is_needless=came.is_set), pytest.raises(RedisConnectionError):
        run(PatientRetry("here", 0), command)
    assert command.attempts == 7


def test_end_of_retry_block_ends_its_threads_retries() -> None:
    begun, failed = threading.Event(), threading.Event()
    command = Command(failures=math.inf, at={3: begun.set})

    def work() -> None:
        with pytest.raises(RedisConnectionError):
            run(PatientRetry("here", 0), command)
        failed.set()

    with retrying(math.inf):
        threading.Thread(target=contextvars.copy_context().run, args=[work], daemon=True).start()
        assert begun.wait(60)
        assert not failed.is_set()
    assert failed.wait(60)


def test_connecting_within_command_does_not_double_retries() -> None:
    connecting = Command(failures=math.inf)
    retry = PatientRetry("here", 0)
    with pytest.raises(RedisConnectionError):
        run(retry, lambda: run(retry, connecting))
    assert connecting.attempts == 2


@pytest.mark.parametrize("error", [AuthenticationError("wrong password"), ResponseError("WRONGTYPE")])
def test_permanent_error_is_raised_at_once(error: Exception) -> None:
    attempts = []

    def command() -> str:
        attempts.append(1)
        raise error

    with pytest.raises(type(error)):
        run(PatientRetry("here", 60), command)
    assert len(attempts) <= 2


def test_outage_is_logged_once_until_server_has_greeted(caplog: pytest.LogCaptureFixture) -> None:
    retry = PatientRetry("redis://h/0", 60)
    for _ in range(2):
        run(retry, lambda: run(retry, Command(failures=20)))
        run(retry, Command(failures=20))
        for _ in range(2):
            retry.greet(Mock(AbstractConnection))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines[0] == "Redis cannot be reached, trying for 60 s more: redis://h/0, away"
    assert [line.partition(":")[0].partition(" after")[0] for line in lines] == [
        "Redis cannot be reached, trying for 60 s more",
        "Redis is back",
    ] * 2


def test_quiet_caller_leaves_outage_logging_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry = PatientRetry("redis://h/0", 60)
    with retrying(math.inf, quiet_until=monotonic() + 3600):
        run(retry, Command(failures=20))
    assert caplog.messages == []
    with retrying(math.inf):
        run(retry, Command(failures=20))
    assert caplog.messages[0] == "Redis cannot be reached, trying until it is back: redis://h/0, away"


def test_temporary_refusal_is_waited_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    retry = PatientRetry("redis://h/0", 60)
    for _ in range(2):
        assert run(retry, Command(failures=20, error=RefusedError)) == "done"
        retry.greet(Mock(AbstractConnection))  # a server that refuses writes may greet
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "Redis accepts no commands, trying for 60 s more",
        "Redis accepts commands again",
    ] * 2


def test_demoted_server_is_left_but_full_server_kept() -> None:
    left = []
    retry = PatientRetry("redis://h/0", 60)
    retry.on_demotion = lambda: left.append(1)

    def command(*errors: RedisError) -> Callable[[], str]:
        answers: list[RedisError] = list(errors)

        def answer() -> str:
            if answers:
                raise answers.pop()
            return "done"

        return answer

    run(retry, command(RefusedError("OOM command not allowed"), RedisConnectionError("away")))
    assert left == []
    run(retry, command(RefusedError("READONLY You can't write against a read only replica.")))
    assert left == [1]
