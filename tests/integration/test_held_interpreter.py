"""A handler that holds the Python interpreter: the process that keeps the worker's leases meanwhile."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.processes import lease_guards_of, runs
from tests.waiting import wait_until

HELD_INTERPRETER_BUNDLE = Path(__file__).parent.parent / "bundles" / "held-interpreter"
LEASE_SECONDS = 3
GRACE_SECONDS = 1
PATIENCE = 90


@pytest.fixture
def place(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


@pytest.fixture
def stack(place: Path) -> Iterator[LocalStack]:
    """Start a worker; at the end, no handler holds an interpreter any more."""
    times = {"GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS), "GOONDAN_GRACE_SECONDS": str(GRACE_SECONDS)}
    with LocalStack(HELD_INTERPRETER_BUNDLE, environment=times) as stack:
        yield stack
        release(place)


def release(place: Path, handlers: int = 8) -> None:
    fifo = os.open(place / "fifo", os.O_RDWR)
    os.write(fifo, b"." * handlers)


def noted(place: Path, name: str = "runs") -> list[int]:
    file = place / name
    return [int(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def hold(stack: LocalStack, place: Path, tool: str = "interpreter") -> PendingCall:
    before = len(noted(place))
    call = stack.client.submit("holder", f"hold__{tool}", {"place": str(place)})
    wait_until(lambda: len(noted(place)) > before, PATIENCE)
    return call


def wait_for_renewals(stack: LocalStack, *calls: PendingCall, times: int = 4) -> None:
    """Wait until the leases of all calls have been renewed so often; a lease has three renewals."""
    with Redis.from_url(stack.redis_url) as redis:
        for call in calls:
            ends: set[float] = set()

            def has_been_renewed(call_id: str = call.id, ends: set[float] = ends) -> bool:
                score = cast("float | None", redis.zscore(Keys().due, call_id))
                assert score is not None, "the call has ended"
                ends.add(score)
                return len(ends) > times

            wait_until(has_been_renewed, PATIENCE)


def guard_of(worker: "subprocess.Popen[bytes]") -> int:
    [guard] = lease_guards_of(worker.pid)
    return guard


def test_handler_holding_interpreter_past_lease_runs_once(stack: LocalStack, place: Path) -> None:
    [worker] = stack.workers
    beside = stack.client.submit("holder", "hold__beside", {"place": str(place)})
    wait_until(lambda: noted(place, "beside"), PATIENCE)
    call = hold(stack, place)
    stack.start_worker()
    wait_for_renewals(stack, call, beside)

    (place / "done").touch()
    release(place)

    for one in (call, beside):
        result = one.result(PATIENCE)
        assert (result.output, result.meta.attempt) == ({"pid": worker.pid}, 1)
    assert noted(place) == noted(place, "beside") == [worker.pid]
    assert stack.client.call("holder", "hold__nothing", timeout=PATIENCE).status == "ok"


def test_held_interpreter_call_ends_at_limit_without_rerun(stack: LocalStack, place: Path) -> None:
    call = hold(stack, place, "briefly")
    stack.start_worker()

    result = call.result(PATIENCE)

    assert result.error is not None
    assert result.error.code == "E_TOOL_TIMEOUT"
    assert len(noted(place)) == 1


def test_frozen_worker_with_held_interpreter_loses_leases(stack: LocalStack, place: Path) -> None:
    [worker] = stack.workers
    call = hold(stack, place)
    other = stack.start_worker()

    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: len(noted(place)) == 2, PATIENCE)
    release(place)

    assert call.result(PATIENCE).output == {"pid": other.pid}
    worker.send_signal(signal.SIGCONT)


def test_guard_that_dies_is_replaced_and_keeps_leases(stack: LocalStack, place: Path) -> None:
    [worker] = stack.workers
    killed = guard_of(worker)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "leases.guard_died" in stack.log(worker), PATIENCE)
    wait_until(lambda: lease_guards_of(worker.pid) not in ([], [killed]), PATIENCE)
    stack.start_worker()

    call = hold(stack, place)
    wait_for_renewals(stack, call)
    release(place)

    assert call.result(PATIENCE).meta.attempt == 1
    assert len(noted(place)) == 1


def test_guard_of_killed_worker_ends_and_keeps_nothing(stack: LocalStack, place: Path) -> None:
    [worker] = stack.workers
    call, guard = hold(stack, place), guard_of(worker)
    other = stack.start_worker()

    worker.kill()
    worker.wait(PATIENCE)
    wait_until(lambda: not runs(guard), PATIENCE)
    wait_until(lambda: len(noted(place)) == 2, PATIENCE)
    release(place)

    assert call.result(PATIENCE).output == {"pid": other.pid}


def test_worker_with_held_interpreter_ends_after_grace(stack: LocalStack, place: Path) -> None:
    [worker] = stack.workers
    hold(stack, place)
    guard = guard_of(worker)

    worker.terminate()

    assert worker.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not runs(guard), PATIENCE)


def test_orderly_drain_leaves_no_guard_or_delay(stack: LocalStack) -> None:
    [worker] = stack.workers
    guard = guard_of(worker)

    worker.terminate()

    assert worker.wait(PATIENCE) == 0
    wait_until(lambda: not runs(guard), PATIENCE)
