"""Pending calls when two come at once, when time runs out, and when workers are killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import PendingCall
from goondan_tasks.contract.errors import CallClosedError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.faults.idle import keys_without_ttl
from tests.faults.sizes import LEASE_SECONDS
from tests.integration.crew import Crew
from tests.waiting import wait_until

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60.0
CALLS = 60


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    environment = {"GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS)}
    with LocalStack(PENDING_BUNDLE, agents=["builder"], workers=0, environment=environment) as stack:
        yield Crew(stack)


@pytest.fixture
def pending_stack(crew: Crew) -> LocalStack:
    """A stack with one worker; a test may kill it."""
    crew.muster()
    return crew.stack


def submit(stack: LocalStack, tool: str, count: int = CALLS, **args: Any) -> list[PendingCall]:
    calls = [{"agentName": "builder", "toolName": tool, "args": args}] * count
    return stack.client.submit_many(calls)


def pending(stack: LocalStack, tool: str, **args: Any) -> list[PendingCall]:
    calls = submit(stack, tool, **args)
    assert {call.result(PATIENCE).status for call in calls} == {"pending"}
    return calls


def finals(calls: list[PendingCall]) -> list[ToolCallResult]:
    return [call.result(PATIENCE, wait_pending=True) for call in calls]


def race(stack: LocalStack, calls: list[PendingCall], *deeds: str) -> list[set[str]]:
    """Let processes do ``deeds`` to the same calls at once; return which calls each of them has ended."""
    ids = [call.id for call in calls]
    rivals = []
    for deed in deeds:
        argv = [sys.executable, "-m", "tests.faults.rivals"]
        rival = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        rivals.append(rival)
        order = {"url": stack.redis_url, "deed": deed, "name": f"{deed}-{len(rivals)}", "ids": ids}
        _pipe(rival.stdin).write(json.dumps(order) + "\n")
        _pipe(rival.stdin).flush()
    for rival in rivals:
        assert _pipe(rival.stdout).readline() == "ready\n"
    for rival in rivals:
        _pipe(rival.stdin).write("go\n")
        _pipe(rival.stdin).flush()
    return [set(json.loads(rival.communicate(timeout=PATIENCE)[0])) for rival in rivals]


def _pipe(stream: Any) -> Any:
    assert stream is not None
    return stream


@pytest.mark.faults
def test_concurrent_completions_settle_call_once_and_refuse_loser(
    pending_stack: LocalStack,
) -> None:
    calls = pending(pending_stack, "jobs__begin")
    first, second = race(pending_stack, calls, "resolve", "resolve")
    assert first | second == {call.id for call in calls}
    assert first & second == set()
    for call, final in zip(calls, finals(calls), strict=True):
        assert final.output == ("resolve-1" if call.id in first else "resolve-2")


@pytest.mark.faults
def test_concurrent_resolve_fail_and_cancel_have_one_outcome(pending_stack: LocalStack) -> None:
    calls = pending(pending_stack, "jobs__begin")
    resolved, failed, cancelled = race(pending_stack, calls, "resolve", "fail", "cancel")
    # to cancel what somebody else has cancelled is fine; what was resolved or failed is closed
    assert sorted([*resolved, *failed, *cancelled]) == sorted(call.id for call in calls)
    codes = {"E_TOOL": failed, "E_TOOL_CANCELLED": cancelled, None: resolved}
    for call, final in zip(calls, finals(calls), strict=True):
        assert call.id in codes[final.error.code if final.error else None]


@pytest.mark.faults
def test_concurrent_approval_and_denial_have_one_outcome(pending_stack: LocalStack, tmp_path: Path) -> None:
    log = tmp_path / "log"
    calls = pending(pending_stack, "guarded__wipe", disk="sda", log=str(log))
    approved, denied = race(pending_stack, calls, "approve", "deny")
    assert approved & denied == set()
    assert approved | denied == {call.id for call in calls}
    ended = {call.id: final.status for call, final in zip(calls, finals(calls), strict=True)}
    assert ended == {**dict.fromkeys(approved, "ok"), **dict.fromkeys(denied, "error")}
    runs = log.read_text("utf-8").splitlines() if log.exists() else []
    assert len(runs) == len(approved)


@pytest.mark.faults
def test_completion_at_expiry_reports_whether_it_counted(pending_stack: LocalStack) -> None:
    calls = submit(pending_stack, "jobs__begin", ttl=1.5)
    for call in calls:
        call.result(PATIENCE)
    first, *rest = calls
    assert first.result(PATIENCE, wait_pending=True).error is not None  # the time of all is over about now
    ended = {call.id: _resolves(pending_stack, call) for call in rest}
    for call in rest:
        final = call.result(PATIENCE, wait_pending=True)
        assert (final.status == "ok") == ended[call.id]
        assert final.error is None or final.error.code == "E_TOOL_EXPIRED"


def _resolves(stack: LocalStack, call: PendingCall) -> bool:
    try:
        stack.client.resolve(call.id, "just in time")
    except CallClosedError:
        return False
    return True


@pytest.mark.faults
def test_worker_killed_right_after_suspension_leaves_call_pending(
    pending_stack: LocalStack,
) -> None:
    [worker] = pending_stack.workers
    [call] = submit(pending_stack, "jobs__begin", 1)
    assert call.result(PATIENCE).status == "pending"
    worker.kill()
    worker.wait()
    pending_stack.client.resolve(call.id, "by nobody's help")
    assert call.result(PATIENCE, wait_pending=True).output == "by nobody's help"


@pytest.mark.faults
def test_pending_call_without_workers_expires_for_waiting_clients(pending_stack: LocalStack) -> None:
    [worker] = pending_stack.workers
    [call] = submit(pending_stack, "jobs__begin", 1, ttl=3)
    assert call.result(PATIENCE).status == "pending"
    worker.kill()
    worker.wait()
    final = call.result(PATIENCE, wait_pending=True)
    assert final.error is not None
    assert final.error.code == "E_TOOL_EXPIRED"


@pytest.mark.faults
@pytest.mark.parametrize("tool", ["jobs__begin", "jobs__begin-async"])
def test_calls_suspending_when_worker_dies_are_pending_or_unknown(
    crew: Crew, pending_stack: LocalStack, tool: str
) -> None:
    [worker] = pending_stack.workers
    calls = submit(pending_stack, tool, 400)
    wait_until(lambda: any(call.status() == "pending" for call in calls[:40]), PATIENCE)
    worker.kill()
    crew.add()
    interim = [call.result(PATIENCE) for call in calls]
    codes = {one.error.code for one in interim if one.error is not None}
    assert codes <= {"E_TOOL_OUTCOME_UNKNOWN"}
    suspended = [call for call, one in zip(calls, interim, strict=True) if one.status == "pending"]
    for call in suspended:
        pending_stack.client.resolve(call.id, call.id)
    assert [one.output for one in finals(suspended)] == [call.id for call in suspended]
    [queue] = [one for one in pending_stack.client.queues() if one.agent == "builder"]
    assert (queue.pending, queue.running) == (0, 0)
    assert keys_without_ttl(pending_stack.redis_url) == []


@pytest.mark.faults
def test_approvals_survive_death_of_all_workers(
    crew: Crew, pending_stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = pending_stack.workers
    log = tmp_path / "log"
    approved, denied = [
        submit(pending_stack, "guarded__wipe", 1, disk=disk, log=str(log))[0] for disk in ("sda", "sdb")
    ]
    assert {call.result(PATIENCE).meta.awaits for call in (approved, denied)} == {"approval"}
    worker.kill()
    worker.wait()
    assert {one.id for one in pending_stack.client.approvals()} == {approved.id, denied.id}
    pending_stack.client.approve(approved.id)
    pending_stack.client.deny(denied.id)
    crew.add()
    assert [one.status for one in finals([approved, denied])] == ["ok", "error"]
    assert log.read_text("utf-8") == "sda\n"
