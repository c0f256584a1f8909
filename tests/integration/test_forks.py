"""Handlers that fork, and children that come back out of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.processes import children_of

FORKS = Path(__file__).parent.parent / "bundles" / "forks"
PATIENCE = 60
LATER = 30
STATUSES = {"return": 0, "raise": 1, "exit": 7}


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(FORKS) as stack:
        yield stack


@pytest.fixture(autouse=True)
def _unharmed(stack: LocalStack) -> Iterator[None]:
    """After each test the worker is the only one that carries out calls, and loses none."""
    [worker] = stack.workers
    before = set(children_of(worker.pid))
    yield
    calls = [stack.client.submit("forker", "fork__pid") for _ in range(LATER)]
    assert {call.result(PATIENCE).output for call in calls} == {worker.pid}
    assert worker.poll() is None
    new = set(children_of(worker.pid)) - before
    assert len([pid for pid in new if not is_multiprocessings(pid)]) <= 1  # the isolated child stays


def is_multiprocessings(pid: int) -> bool:
    """Return whether a process is the server or the tracker that `multiprocessing` keeps."""
    return b"from multiprocessing." in Path(f"/proc/{pid}/cmdline").read_bytes()


def output(stack: LocalStack, tool: str, args: dict[str, Any], agent: str = "forker") -> Any:
    result = stack.client.call(agent, f"fork__{tool}", args, timeout=PATIENCE)
    assert result.error is None
    return result.output


@pytest.mark.parametrize("leave", STATUSES)
@pytest.mark.parametrize("tool", ["plain", "retried", "coroutine", "beside", "isolated"])
def test_forked_child_ends_when_it_leaves_handler(stack: LocalStack, tool: str, leave: str) -> None:
    assert output(stack, tool, {"leave": leave}) == STATUSES[leave]


def test_forked_child_ends_when_its_async_handler_suspends(stack: LocalStack) -> None:
    assert output(stack, "suspended", {"leave": "return"}) == 0


@pytest.mark.parametrize("leave", STATUSES)
def test_child_forked_in_handler_never_reaches_middleware(stack: LocalStack, leave: str) -> None:
    assert output(stack, "plain", {"leave": leave}, "wrapped") == STATUSES[leave]


def test_child_forked_by_middleware_ends_when_leaving_middleware(stack: LocalStack) -> None:
    assert output(stack, "pid", {"leave": "middleware"}, "wrapped") == {"status": 0}


def test_forked_process_can_be_terminated(stack: LocalStack) -> None:
    assert output(stack, "terminated", {}) == -15


def test_progress_of_forked_child_does_not_reach_redis(stack: LocalStack) -> None:
    call = stack.client.submit("forker", "fork__reporting")

    assert call.result(PATIENCE).output == 0
    assert call.progress() is None


def test_multiprocessing_that_spawns_works_in_handler(stack: LocalStack) -> None:
    assert output(stack, "spawned", {}) == [6, 24]
    assert len(stack.client.workers()) == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("tool", ["spread", "spread_isolated"])
def test_new_processes_import_functions_of_entry_file(stack: LocalStack, tool: str, method: str) -> None:
    assert output(stack, tool, {"method": method}) == [5, [2, 6], 12]
    assert len(stack.client.workers()) == 1
