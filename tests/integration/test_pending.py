"""Results that come later: a call is pending until somebody completes it, once."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from goondan_tasks.client import AsyncClient, Client, PendingCall
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    NoOutputError,
    PayloadTooLargeError,
    ToolInputValidationError,
    ToolOutputError,
    WaitTimeout,
)
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PUBLIC_URL = "https://goondan.example/hooks/"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def pending_stack() -> Iterator[LocalStack]:
    with LocalStack(PENDING_BUNDLE, environment={"GOONDAN_PUBLIC_URL": PUBLIC_URL}) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(pending_stack: LocalStack) -> Client:
    return pending_stack.client


def begun(
    client: Client, tool: str = "jobs__begin", *, instance: str = "default", **args: Any
) -> PendingCall:
    """Submit a call and wait until it is pending."""
    call = client.submit("builder", tool, args, instance_key=instance)
    assert call.result(PATIENCE).status == "pending"
    return call


@pytest.mark.requirement("result.async-form")
def test_documents_build_is_pending_with_handle_and_message(client: Client) -> None:
    result = client.call("builder", "build__start", {"project": "12345"}, timeout=PATIENCE)
    assert (result.status, result.handle, result.error) == ("pending", "build-12345", None)
    assert result.output == {"message": "빌드가 시작되었습니다. 완료되면 알려드리겠습니다."}
    assert result.meta.awaits == "completion"


def test_agent_with_entry_hears_call_end_in_own_turn(
    pending_stack: LocalStack,
) -> None:
    client = pending_stack.client
    order = {"tool": "jobs__begin", "args": {"handle": "job-8"}}
    answer = client.request("clerk", order, instance_key="desk", timeout=PATIENCE)
    client.fail(answer.response["meta"]["id"], {"code": "E_COMPILER", "message": "line 3"})
    heard = pending_stack.state_root / "workspaces" / "pending" / "instances" / "desk" / "workspace" / "heard"
    wait_until(lambda: heard.exists() and heard.read_text().endswith("\n"), PATIENCE)
    [told] = [json.loads(line) for line in heard.read_text().splitlines()]
    assert (told["handle"], told["status"]) == ("job-8", "error")
    assert (told["error"]["code"], told["error"]["message"]) == ("E_COMPILER", "line 3")
    assert told["correlationId"] == answer.correlation_id


def test_pending_call_returns_its_slot_and_limits(client: Client) -> None:
    calls = [begun(client, "jobs__begin-alone", instance="limits", handle=f"job-{n}") for n in range(20)]
    for number, call in enumerate(calls):
        client.resolve(call.id, number)
    assert [call.result(PATIENCE, wait_pending=True).output for call in calls] == list(range(20))


def test_two_calls_with_one_handle_are_never_mixed(client: Client) -> None:
    first, second = begun(client, handle="same"), begun(client, handle="same")
    client.resolve(second.id, "second")
    assert first.status() == "pending"
    client.resolve(first.id, "first")
    ended = [call.result(PATIENCE, wait_pending=True) for call in (first, second)]
    assert [(one.handle, one.output) for one in ended] == [("same", "first"), ("same", "second")]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("it broke", "E_TOOL", "it broke"),
        ({"message": "no space", "code": "E_DISK", "suggestion": "buy"}, "E_DISK", "no space"),
        (FileNotFoundError(2, "gone"), "ENOENT", "[Errno 2] gone"),
    ],
)
def test_call_is_completed_with_error(client: Client, error: Any, code: str, message: str) -> None:
    call = begun(client)
    client.fail(call.id, error)
    ended = call.result(PATIENCE, wait_pending=True)
    assert ended.status == "error"
    assert ended.error is not None
    assert (ended.error.code, ended.error.message) == (code, message)


def test_second_completion_is_refused_and_changes_nothing(client: Client) -> None:
    call = begun(client)
    client.resolve(call.id, "first")
    with pytest.raises(CallClosedError):
        client.resolve(call.id, "second")
    with pytest.raises(CallClosedError):
        client.fail(call.id, "second")
    with pytest.raises(CallClosedError):
        call.cancel()
    assert call.result(PATIENCE, wait_pending=True).output == "first"


def test_uncompleted_pending_call_expires_and_is_closed(client: Client) -> None:
    call = client.submit("builder", "jobs__begin", {"ttl": 0.3}, instance_key="expires")
    ended = call.result(PATIENCE, wait_pending=True)
    assert ended.error is not None
    assert (ended.error.code, ended.handle) == ("E_TOOL_EXPIRED", "job-1")
    with pytest.raises(CallClosedError):
        client.resolve(call.id, "too late")
    event = client.receive("builder", "expires", PATIENCE)
    assert event is not None
    client.reply(event)
    assert event.event.input["error"]["code"] == "E_TOOL_EXPIRED"


def test_pending_call_is_cancelled_at_once(client: Client) -> None:
    call = begun(client)
    call.cancel()
    ended = call.result(PATIENCE, wait_pending=True)
    assert ended.error is not None
    assert (ended.error.code, call.status()) == ("E_TOOL_CANCELLED", "done")
    with pytest.raises(CallClosedError):
        client.resolve(call.id, "too late")


def test_wait_for_pending_completion_ends_in_time(client: Client) -> None:
    call = begun(client)
    with pytest.raises(WaitTimeout):
        call.result(0.1, wait_pending=True)
    assert call.result(PATIENCE).status == "pending"
    client.resolve(call.id, 1)
    assert call.result(PATIENCE).status == "ok"


def test_event_loop_waits_for_completion(pending_stack: LocalStack) -> None:
    async def complete() -> Any:
        async with await AsyncClient.connect(pending_stack.redis_url, bundle=PENDING_BUNDLE) as client:
            call = await client.submit("builder", "jobs__begin", {})
            assert (await call).status == "pending"
            waiting = asyncio.create_task(call.wait(PATIENCE, wait_pending=True))
            await client.resolve(call.id, "there")
            return (await waiting).output

    assert asyncio.run(complete()) == "there"


def test_callback_completes_its_call_and_no_other(client: Client) -> None:
    call, other = begun(client, callback=True), begun(client, callback=True)
    url = call.result(PATIENCE).output["callback"]
    address, _, token = url.rpartition("/")
    assert address == f"{PUBLIC_URL}callbacks/{call.id}"
    assert len(token) == 43
    for stranger in ("", "x", f"{token}x", "\ud800"):
        with pytest.raises(CallNotFoundError):
            client.complete_with_token(call.id, stranger, "mine")
    with pytest.raises(CallNotFoundError):
        client.complete_with_token(other.id, token, "mine")
    client.complete_with_token(call.id, token, {"done": True})
    with pytest.raises(CallClosedError):
        client.complete_with_token(call.id, token, error="again")
    assert call.result(PATIENCE, wait_pending=True).output == {"done": True}
    assert other.status() == "pending"


def test_tool_in_own_process_knows_its_callback(client: Client) -> None:
    call = begun(client, "jobs__begin-apart", callback=True)
    client.complete_with_token(
        call.id, call.result(PATIENCE).output["callback"].rpartition("/")[2], error="no"
    )
    ended = call.result(PATIENCE, wait_pending=True)
    assert ended.error is not None
    assert ended.error.message == "no"


@pytest.mark.parametrize("ends", [False, True])
def test_completion_before_handler_end_is_kept(client: Client, tmp_path: Path, ends: bool) -> None:
    told, until = tmp_path / "told", tmp_path / "until"
    call = client.submit("builder", "jobs__linger", {"told": str(told), "until": str(until), "ends": ends})
    wait_until(told.exists, PATIENCE)
    token = told.read_text().rpartition("/")[2]
    client.complete_with_token(call.id, token, "quick")
    with pytest.raises(CallClosedError):
        client.resolve(call.id, "second")
    assert call.status() == "running"
    until.touch()
    result = call.result(PATIENCE)
    assert (result.status, result.output) == ("ok", "done here" if ends else "quick")
    with pytest.raises(CallClosedError):
        client.complete_with_token(call.id, token, "again")


def test_call_not_pending_cannot_be_completed(pending_stack: LocalStack) -> None:
    client = pending_stack.client
    with pytest.raises(CallNotFoundError):
        client.resolve("nobody", 1)
    with pytest.raises(CallNotFoundError):
        client.complete_with_token("nobody", "x", 1)
    ended = client.call("builder", "guarded__look", {}, timeout=PATIENCE)
    with pytest.raises(CallClosedError):
        client.resolve(ended.meta.id, 1)
    with LocalStack(PENDING_BUNDLE, workers=0) as empty:
        queued = empty.client.submit("builder", "jobs__begin", {})
        with pytest.raises(CallNotPendingError, match="it is queued"):
            empty.client.resolve(queued.id, 1)


def test_completion_that_cannot_be_read_changes_nothing(client: Client) -> None:
    call = begun(client)
    with pytest.raises(ToolOutputError):
        client.resolve(call.id, object())
    with pytest.raises(PayloadTooLargeError):
        client.resolve(call.id, "x" * 300_000)
    for wrong in ({"code": "E_X"}, {}, None, 42, ["it broke"], b"it broke"):
        with pytest.raises(ToolInputValidationError, match="An error has a message"):
            client.fail(call.id, cast(Any, wrong))
    with pytest.raises(NoOutputError, match="is pending"):
        client.output(call.id)
    client.resolve(call.id, "all is well")
    assert call.result(PATIENCE, wait_pending=True).output == "all is well"


@pytest.mark.parametrize(
    "args", [{"handle": ""}, {"handle": 7}, {"handle": "x" * 1001}, {"ttl": -1}, {"ttl": "1"}]
)
def test_unusable_handle_is_error_not_endless_call(client: Client, args: dict[str, Any]) -> None:
    result = client.call("builder", "jobs__begin", args, timeout=PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_BAD_OUTPUT"


def test_queues_and_calls_show_pending_calls(client: Client) -> None:
    before = {one.agent: one.pending for one in client.queues()}
    call = begun(client, handle="shown")
    after = {one.agent: one.pending for one in client.queues()}
    [row] = [one.to_wire() for one in client.calls("builder") if one.id == call.id]
    assert (after["builder"], after["clerk"]) == (before["builder"] + 1, before["clerk"])
    assert (row["status"], row["handle"], row["awaits"]) == ("pending", "shown", "completion")
    client.resolve(call.id)
    assert {one.agent: one.pending for one in client.queues()} == before
