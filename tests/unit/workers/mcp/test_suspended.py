"""The pending calls that wait for tasks of MCP servers, in an in-memory Redis."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import Pending
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from tests.unit.goondan_tasks.ledger.calls import a_call, claimed, submit
from workers.mcp.suspended import RemoteTask, SuspendedCalls

TASK = RemoteTask("far", "task:1")


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with fakeredis.FakeRedis() as redis:
        yield Ledger(redis, Settings())


@pytest.fixture
def reaper(ledger: Ledger) -> Reaper:
    return Reaper(ledger, "https://help/")


@pytest.fixture
def calls(ledger: Ledger, reaper: Reaper) -> SuspendedCalls:
    return SuspendedCalls(ledger, reaper)


def suspended(ledger: Ledger, handle: str = TASK.handle) -> str:
    """Make a call wait; return its id."""
    call = a_call(tool_call_id=handle)
    submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    pending = claim.run.pending(Pending(handle, None), 5.0, expires_at=claim.run.clock() + 60_000)
    ledger.suspend(claim, pending).run(ledger.redis)
    return identity_of(call)


def stored(ledger: Ledger, call_id: str) -> ToolCallResult:
    result = ledger.result(call_id)
    assert result is not None
    return result


def left(ledger: Ledger, call_id: str) -> int:
    """Return for how many milliseconds nobody asks about the task of a call."""
    return ledger.redis.pttl(ledger.keys.mcp_task(call_id))


def test_task_is_found_behind_many_pending_calls(ledger: Ledger, calls: SuspendedCalls) -> None:
    call_id = suspended(ledger)
    others = {f"call-{number}": number for number in range(2_500)}  # they expire before
    ledger.redis.zadd(ledger.keys.pending("coder"), others)

    assert calls.waiting("coder") == {call_id: TASK}


def test_call_that_waits_again_is_read_again(ledger: Ledger, calls: SuspendedCalls) -> None:
    call_id = suspended(ledger, "job-1")
    assert calls.waiting("coder") == {}

    ledger.redis.hset(ledger.keys.call(call_id), "handle", TASK.handle)
    ledger.redis.zincrby(ledger.keys.pending("coder"), 1, call_id)
    assert calls.waiting("coder") == {call_id: TASK}
    ledger.redis.zrem(ledger.keys.pending("coder"), call_id)
    assert calls.waiting("coder") == {}


def test_only_calls_that_wait_for_task_are_found(ledger: Ledger, calls: SuspendedCalls) -> None:
    call_id = suspended(ledger)
    suspended(ledger, "job-1")

    assert calls.waiting("coder") == {call_id: TASK}
    assert calls.waiting("other") == {}

    calls.complete(call_id, {"done": True})
    assert calls.waiting("coder") == {}
    assert stored(ledger, call_id).output == {"done": True}


def test_one_worker_asks_about_task_until_due(ledger: Ledger, calls: SuspendedCalls) -> None:
    assert calls.take(["one", "two"], 60) == {"one", "two"}
    assert calls.take(["two", "three"], 60) == {"three"}
    assert left(ledger, "one") > 30_000

    calls.put_off("one", 1)
    assert left(ledger, "one") <= 1_000


def test_outcome_that_comes_late_changes_nothing(ledger: Ledger, calls: SuspendedCalls) -> None:
    call_id = suspended(ledger)
    calls.complete(call_id, "first")

    calls.complete(call_id, "late")
    calls.fail(call_id, ValueError("late"))
    calls.complete("unknown", "late")

    assert stored(ledger, call_id).output == "first"


def test_oversized_or_non_json_result_is_error(ledger: Ledger, calls: SuspendedCalls) -> None:
    large, odd = suspended(ledger, "mcp-task:far:1"), suspended(ledger, "mcp-task:far:2")

    calls.complete(large, "x" * (ledger.settings.max_output_bytes + 1))
    calls.complete(odd, {"a": object()})

    codes = [error.code for call_id in (large, odd) if (error := stored(ledger, call_id).error) is not None]
    assert codes == ["E_PAYLOAD_TOO_LARGE", "E_TOOL_BAD_OUTPUT"]


def test_cancelled_call_is_given_up_unlike_ended_call(
    ledger: Ledger, calls: SuspendedCalls, reaper: Reaper
) -> None:
    done, cancelled = suspended(ledger, "mcp-task:far:1"), suspended(ledger, "mcp-task:far:2")
    calls.complete(done, "done")
    reaper.cancel(cancelled, "somebody")

    assert [calls.is_given_up(call_id) for call_id in (done, cancelled, "unknown")] == [False, True, False]
