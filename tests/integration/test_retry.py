"""Failed runs of an export with ``retry``: tried again, and not for ever."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.crew import Crew
from tests.integration.results import error_of
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """A stack with short leases and a long grace period, for tests that stop its workers."""
    environment = {"GOONDAN_LEASE_SECONDS": "2"}
    with LocalStack(CALLS_BUNDLE, agents=["smith"], workers=0, environment=environment) as stack:
        yield Crew(stack)


@pytest.fixture
def stack(crew: Crew) -> LocalStack:
    return crew.stack


def runs(place: Path) -> int:
    path = place / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def call(client: Client, tool: str, place: Path, **fields: Any) -> ToolCallResult:
    timeout_seconds = fields.pop("timeout_seconds", None)
    args = {"place": str(place), "times": 99, **fields}
    return client.call("smith", tool, args, timeout_seconds=timeout_seconds, timeout=PATIENCE)


def test_call_out_of_retries_ends_with_last_error(client: Client, tmp_path: Path) -> None:
    result = call(client, "flaky__fails", tmp_path)
    assert error_of(result) == ("E_FLAKY", "Run 3 fails.")
    assert (result.meta.attempt, runs(tmp_path)) == (3, 3)


def test_more_retries_than_attempts_are_no_poison(client: Client, tmp_path: Path) -> None:
    result = call(client, "flaky__any", tmp_path, times=5)
    assert (result.status, result.output, result.meta.attempt) == ("ok", 6, 6)


def test_unlisted_code_is_not_retried(client: Client, tmp_path: Path) -> None:
    result = call(client, "flaky__fails", tmp_path, code="E_OTHER")
    assert error_of(result) == ("E_OTHER", "Run 1 fails.")
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("code", ["E_TOOL_INVALID_ARGS", "E_TOOL_NOT_FOUND", "E_TOOL_EXPIRED"])
def test_permanent_error_is_not_retried(client: Client, tmp_path: Path, code: str) -> None:
    result = call(client, "flaky__any", tmp_path, code=code)
    assert (error_of(result)[0], runs(tmp_path)) == (code, 1)


def test_callers_limit_holds_for_all_runs_together(client: Client, tmp_path: Path) -> None:
    result = call(client, "flaky__slow", tmp_path, seconds=0.8, timeout_seconds=5)
    assert error_of(result)[0] in {"E_FLAKY", "E_TOOL_TIMEOUT"}
    assert 2 <= runs(tmp_path) <= 5 / (0.8 + 0.2)  # of ten, if each had its own limit


def test_no_run_begins_after_deadline(tmp_path: Path) -> None:
    environment = {"GOONDAN_QUEUE_TIMEOUT_SECONDS": "20"}  # less than it is to wait for its second run
    with LocalStack(CALLS_BUNDLE, agents=["smith"], environment=environment) as stack:
        result = call(stack.client, "flaky__later", tmp_path)
    assert error_of(result) == ("E_FLAKY", "Run 1 fails.")
    assert runs(tmp_path) == 1


def test_call_awaiting_retry_holds_no_slot_and_is_cancellable(
    crew: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    crew.muster(concurrency=1)
    args = {"place": str(tmp_path), "times": 99}
    waiting = stack.client.submit("smith", "flaky__later", args)
    wait_until(lambda: runs(tmp_path) == 1, PATIENCE)
    assert stack.client.call("smith", "echo__args", {"n": 1}, timeout=30).output == {"n": 1}
    wait_until(lambda: waiting.status() == "scheduled", PATIENCE)
    waiting.cancel()
    assert error_of(waiting.result(PATIENCE))[0] == "E_TOOL_CANCELLED"
    assert runs(tmp_path) == 1


def test_call_awaits_retry_without_worker_and_can_run_now(
    crew: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = crew.muster()
    waiting = stack.client.submit("smith", "flaky__later", {"place": str(tmp_path), "times": 1})
    wait_until(lambda: waiting.status() == "scheduled", PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    [record] = stack.client.calls(status="scheduled")
    assert (record.id, record.attempt, record.worker) == (waiting.id, 1, None)
    waiting.run_now()
    assert waiting.status() == "queued"
    crew.add()
    result = waiting.result(PATIENCE)
    assert (result.output, result.meta.attempt, runs(tmp_path)) == (2, 2, 2)
