"""Waiting for a result, interim ones included, and looking for one whose notification was missed."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import pending_call
from goondan_tasks.client.pending_call import CallService, PendingCall
from goondan_tasks.client.results import Expected
from goondan_tasks.contract.errors import BrokerUnreachableError, CallNotFoundError, WaitTimeout
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import Progress, report_of
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from tests.unit.goondan_tasks.ledger.calls import ONCE, a_call, claimed, record_of, submit

PROGRESS = Progress(done=3, total=10, updated_at="2026-02-01T10:00:00.000Z")


def a_result(status: str) -> ToolCallResult:
    meta = dict.fromkeys(
        ("id", "agentName", "instanceKey", "turnId", "traceId", "spanId", "correlationId"), "x"
    )
    return ToolCallResult.from_wire(
        {"toolCallId": "call_1", "toolName": "t__x", "status": status, "meta": meta}
    )


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings.load())


class Sweeping(Reaper):
    """Counts the sweeps; the first ones may fail."""

    def __init__(self, ledger: Ledger, *errors: Exception) -> None:
        super().__init__(ledger, "https://help/")
        self.sweeps = 0
        self._errors = list(errors)

    def sweep(self, sweeper: str) -> int:
        self.sweeps += 1
        if self._errors:
            raise self._errors.pop()
        return super().sweep(sweeper)


@pytest.fixture
def calls(ledger: Ledger) -> CallService:
    return CallService(ledger, Sweeping(ledger))


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_call, "LOOK_SECONDS", 0.0)


class Waiting:
    """A call on the ledger, and one who waits for it."""

    def __init__(self, calls: CallService, ledger: Ledger) -> None:
        self.calls = calls
        self.tool_call = a_call()
        self.id = submit(ledger, self.tool_call)
        [self.pending] = calls.pending([self.id])

    def suspend(self) -> PendingCall:
        """Store an interim result, and let it come."""
        wire = serializer.encode(a_result("pending").to_wire())
        ledger = self.calls._ledger
        ledger.redis.hset(ledger.keys.call(self.id), mapping={"status": "pending", "result": wire})
        return self.hear("pending")

    def hear(self, *statuses: str) -> PendingCall:
        """Let results come, each in place of the one before."""
        for status in statuses:
            self.calls.listener.resolve(self.id, serializer.encode(a_result(status).to_wire()))
        return self.pending


@pytest.fixture
def waiting(calls: CallService, ledger: Ledger) -> Waiting:
    return Waiting(calls, ledger)


def test_interim_result_is_returned_unless_final_is_awaited(waiting: Waiting) -> None:
    call = waiting.suspend()
    assert [call.result(30).status for _ in range(3)] == ["pending"] * 3
    waiting.hear("ok")
    assert call.result(1, wait_pending=True).status == "ok"
    assert call.result(30).status == "ok"


def test_interim_result_is_never_returned_after_final(waiting: Waiting) -> None:
    call = waiting.hear("pending", "ok")
    assert call.result(30).status == "ok"
    assert asyncio.run(call.wait(30)).status == "ok"


def test_interim_result_polled_again_hides_no_final_result(waiting: Waiting, always_due: None) -> None:
    call = waiting.suspend()
    assert call.result(30).status == "pending"
    for _ in range(5):
        waiting.calls.poll(waiting.id)
    waiting.hear("ok")
    assert call.result(30).status == "ok"


def test_latest_of_several_interim_results_counts(waiting: Waiting) -> None:
    call, later = waiting.suspend(), a_result("pending").model_copy(update={"handle": "second"})
    waiting.calls.listener.resolve(waiting.id, later)
    waiting.hear("ok")
    assert call.result(30).status == "ok"


def test_waiting_for_final_result_ends_in_time(waiting: Waiting) -> None:
    with pytest.raises(WaitTimeout):
        waiting.hear("pending").result(0.05, wait_pending=True)


def test_interim_result_returns_at_once_after_awaiting_final(waiting: Waiting, calls: CallService) -> None:
    call = waiting.suspend()
    with pytest.raises(WaitTimeout):
        call.result(0.05, wait_pending=True)
    [another] = calls.pending([waiting.id])
    there = list[bool]()

    with mock.patch.object(calls.listener, "wait", lambda expected, seconds: there.append(expected.is_there)):
        assert [one.result(0.05).status for one in (another, call)] == ["pending"] * 2
    with mock.patch.object(Expected, "waking", side_effect=AssertionError("the task waits")):
        assert asyncio.run(call.wait(30)).status == "pending"
    assert there == [True, True]


def test_event_loop_waits_for_final_result_too(waiting: Waiting) -> None:
    call = waiting.hear("pending")
    with pytest.raises(WaitTimeout):
        asyncio.run(call.wait(0.05, wait_pending=True))
    waiting.hear("ok")
    assert asyncio.run(call.wait(30, wait_pending=True)).status == "ok"


def test_output_that_mentions_pending_is_final_result(waiting: Waiting) -> None:
    result = a_result("ok").model_copy(update={"output": {"status": "pending"}})
    waiting.calls.listener.resolve(waiting.id, serializer.encode(result.to_wire()))
    assert waiting.pending.result(30, wait_pending=True) == result


def test_result_is_parsed_once_for_all_waiting_threads(waiting: Waiting) -> None:
    [other] = waiting.calls.pending([waiting.id])
    assert waiting.hear("ok").result(30) is other.result(30)


@pytest.mark.parametrize("damaged", [b"{", b"\xff", b'{"v":2}', b"[]"])
def test_stored_result_replaces_unreadable_notification(
    waiting: Waiting, ledger: Ledger, always_due: None, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    claim = claimed(ledger, waiting.tool_call)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    waiting.calls.listener.resolve(waiting.id, damaged)
    assert waiting.pending.result(30).output == 1
    assert "cannot be read" in caplog.text


def test_task_gets_stored_instead_of_damaged_result(
    waiting: Waiting, ledger: Ledger, always_due: None
) -> None:
    claim = claimed(ledger, waiting.tool_call)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    waiting.calls.listener.resolve(waiting.id, b"{")
    assert asyncio.run(waiting.pending.wait(30)).output == 1


def test_status_follows_record_even_when_result_is_known(waiting: Waiting) -> None:
    assert waiting.hear("error").status() == "queued"


def test_call_is_cancelled_by_its_id(waiting: Waiting, ledger: Ledger) -> None:
    waiting.pending.cancel()
    assert record_of(ledger, waiting.tool_call).is_cancelled


def test_call_tells_its_progress(waiting: Waiting, redis: Redis) -> None:
    redis.hset(f"goondan:call:{waiting.id}", "progress", b"1769940000000 " + report_of(3, 10))
    assert waiting.pending.progress() == PROGRESS


def test_result_whose_notification_was_missed_is_found(
    calls: CallService, ledger: Ledger, always_due: None
) -> None:
    done, other = a_call(), a_call(turn_id="turn-2")
    pending = calls.pending([submit(ledger, done), submit(ledger, other)])
    claim = ledger.claim(ClaimRequest(pending[0].id, done, "w1", ONCE)).run(ledger.redis)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)

    assert not calls.poll(pending[1].id)

    assert pending[0].result(0).output == 1
    with pytest.raises(WaitTimeout):
        pending[1].result(0)


def test_unreadable_result_and_unknown_call_are_reported(
    calls: CallService, ledger: Ledger, always_due: None
) -> None:
    unknown, damaged = calls.pending(["unknown", "damaged"])
    ledger.redis.hset(ledger.keys.call("damaged"), "result", b"{")

    assert calls.poll("unknown")

    for _ in range(2):
        with pytest.raises(CallNotFoundError, match="cannot be read"):
            damaged.result(30)
    with pytest.raises(CallNotFoundError, match="unknown"):
        unknown.result(30)


def test_next_sweep_waits_until_it_is_due(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, always_due: None
) -> None:
    reaper = Sweeping(ledger)
    calls = CallService(ledger, reaper)
    calls.poll("any")
    monkeypatch.setattr(pending_call, "LOOK_SECONDS", 60.0)
    calls.poll("any")
    assert reaper.sweeps == 1


def test_failed_poll_is_retried_by_next_waiting_thread(ledger: Ledger, always_due: None) -> None:
    calls = CallService(ledger, Sweeping(ledger, RedisConnectionError("gone")))
    unknown = calls.pending(["unknown"])
    with pytest.raises(BrokerUnreachableError):
        calls.poll("unknown")
    assert calls.poll("unknown")
    assert len(unknown) == 1


def test_thread_arriving_during_poll_does_not_poll_too(ledger: Ledger, always_due: None) -> None:
    class Polling(Sweeping):
        def sweep(self, sweeper: str) -> int:
            service.poll("any")
            return super().sweep(sweeper)

    reaper = Polling(ledger)
    service = CallService(ledger, reaper)
    service.poll("any")
    assert reaper.sweeps == 1
