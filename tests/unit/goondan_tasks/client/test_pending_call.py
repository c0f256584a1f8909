"""Waiting for a result, interim ones included."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.client.pending_call import CallActions, PendingCall
from goondan_tasks.client.result_listener import ResultFuture, ResultListener
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.progress import Progress
from tests.unit.goondan_tasks.cli.fake_client import record

PROGRESS = Progress(done=3, total=10, updated_at="2026-02-01T10:00:00.000Z")
cancelled: list[str] = []


def a_result(status: str) -> ToolCallResult:
    meta = dict.fromkeys(
        ("id", "agentName", "instanceKey", "turnId", "traceId", "spanId", "correlationId"), "x"
    )
    return ToolCallResult.from_wire(
        {"toolCallId": "call_1", "toolName": "t__x", "status": status, "meta": meta}
    )


def already(*statuses: str) -> PendingCall:
    """A call whose results have come, each in place of the one before."""
    futures: list[ResultFuture] = []
    for status in statuses:
        future = ResultFuture()
        future.set_result(a_result(status))
        futures.append(future)
    futures.append(ResultFuture())
    return PendingCall("id-1", actions(lambda _: futures.pop(0), "pending"))


def wait(future: ResultFuture, seconds: float) -> None:
    with contextlib.suppress(FutureTimeoutError):
        future.exception(seconds)


def actions(follow: Callable[[str], ResultFuture], status: str) -> CallActions:
    return CallActions(
        follow=follow,
        wait=wait,
        awaited=contextlib.nullcontext,
        look=lambda _: status,
        look_for_all=lambda _: False,
        is_look_due=lambda: True,
        cancel=cancelled.append,
        record=lambda _: record(progress=PROGRESS),
    )


def test_an_interim_result_is_returned_unless_the_final_one_is_waited_for() -> None:
    call = already("pending", "pending", "ok")
    assert call.result(30).status == "pending"
    assert call.result(1, wait_pending=True).status == "ok"
    assert call.result(30).status == "ok"


def test_an_interim_result_is_not_returned_any_more_once_there_is_a_final_one() -> None:
    assert already("pending", "ok").result(30).status == "ok"
    assert asyncio.run(already("pending", "ok").wait(30)).status == "ok"


def test_the_result_after_an_interim_one_is_expected_before_anybody_asks_for_it() -> None:
    listener = ResultListener(fakeredis.FakeRedis(), Keys(), lambda _: None)
    call = PendingCall("id-1", actions(listener.future, "pending"))
    listener.resolve("id-1", a_result("pending"))
    listener.resolve("id-1", a_result("ok"))
    assert call.result(1, wait_pending=True).status == "ok"


def test_waiting_for_the_final_result_ends_in_time() -> None:
    with pytest.raises(WaitTimeout):
        already("pending").result(0.05, wait_pending=True)


def test_an_event_loop_waits_for_the_final_result_too() -> None:
    assert asyncio.run(already("pending", "ok").wait(1, wait_pending=True)).status == "ok"
    with pytest.raises(WaitTimeout):
        asyncio.run(already("pending").wait(0.05, wait_pending=True))


def test_a_status_is_what_the_record_says_even_when_the_result_is_there() -> None:
    future = ResultFuture()
    future.set_result(a_result("error"))
    assert PendingCall("id-1", actions(lambda _: future, "dead")).status() == "dead"


def test_a_call_is_cancelled_by_its_id() -> None:
    cancelled.clear()
    already("pending").cancel()
    assert cancelled == ["id-1"]


def test_a_call_tells_its_progress() -> None:
    assert already("pending").progress() == PROGRESS
