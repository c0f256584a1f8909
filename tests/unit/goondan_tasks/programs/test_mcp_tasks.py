"""Calls as tasks of MCP, by their records."""

import asyncio
from typing import Any, Literal

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, MISSING_REQUIRED_CLIENT_CAPABILITY, EmptyResult, Request, RequestParams

from goondan_tasks.contract.messages import ToolCall, iso_time
from goondan_tasks.contract.output import Progress
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.programs import mcp_calls
from goondan_tasks.programs.mcp_server import AgentServer
from tests.integration.mcp_task_client import DetailedTask, TasksExtension, got
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, NOW, record, result
from tests.unit.goondan_tasks.fake_async_client import FakeAsyncClient


def task_record(status: str, **fields: Any) -> CallRecord:
    """Make the record of a task."""
    call = {**META, "instanceKey": "mcp-1", "turnId": "mcp-task-1"}
    wire = {name: call[name] for name in ("agentName", "instanceKey", "turnId", "traceId", "spanId")}
    names = {"toolCallId": "call_1", "toolName": "bash__exec", "correlationId": "c"}
    return record(status, call=ToolCall.from_wire({**wire, **names}), **fields)


def ended(code: str) -> dict[str, Any]:
    """Return the fields of a record whose call ended with an error 5 s after it was queued."""
    error = {"code": code, "name": "SomeError", "message": "It is over."}
    return {
        "finished_at": NOW + 5_000,
        "outcome": "error",
        "result": result("error", error=error).to_json(),
    }


def task_of(found: CallRecord) -> DetailedTask:
    """Ask a server for the task with this record."""

    async def use() -> DetailedTask:
        server = AgentServer(FakeAsyncClient(records=[found]).as_client, "coder", result_ttl_seconds=60)
        async with Client(server.build(), mode="auto", cache=None, extensions=[TasksExtension()]) as client:
            return await got(client, CALL_ID)

    return asyncio.run(use())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("E_TOOL", "completed"),
        ("E_TOOL_TIMEOUT", "completed"),
        ("E_TOOL_CANCELLED", "cancelled"),
        ("E_TOOL_OUTCOME_UNKNOWN", "failed"),
        ("E_TOOL_POISONED", "failed"),
    ],
)
def test_tool_error_completes_task_lost_call_fails_task(code: str, status: str) -> None:
    task = task_of(task_record("done", **ended(code)))

    assert (task.status, task.status_message) == (status, f"{code}: It is over.")
    assert (task.result is not None) == (status == "completed")
    assert (task.error is not None) == (status == "failed")
    if task.error is not None:
        assert (task.error["code"], task.error["data"]["code"]) == (INTERNAL_ERROR, code)


def test_result_that_cannot_be_read_fails_task() -> None:
    task = task_of(task_record("done", finished_at=NOW, outcome="ok", result=b"{"))

    assert task.status == "failed"
    assert task.error is not None
    assert "cannot be read" in task.error["message"]


def test_task_is_kept_after_end_and_polled_slower() -> None:
    task = task_of(task_record("done", claimed_at=NOW + 10, **ended("E_TOOL")))

    assert (task.created_at, task.last_updated_at) == (iso_time(NOW), iso_time(NOW + 5_000))
    assert (task.ttl_ms, task.poll_interval_ms) == (65_000, 500)


def test_running_task_shows_latest_progress() -> None:
    progress = Progress(done=1, total=4, message="reads", updated_at="2126-02-01T10:00:00.000Z")

    task = task_of(task_record("running", progress=progress, queued_at=1_000))

    assert (task.status, task.status_message) == ("working", "1/4 · reads")
    assert (task.last_updated_at, task.poll_interval_ms) == (progress.updated_at, 5_000)


def test_outage_is_awaited_and_reported_if_lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_calls, "OUTAGE_SECONDS", 0)

    async def use() -> None:
        server = AgentServer(FakeAsyncClient(is_away=True).as_client, "coder", look_seconds=60)
        async with Client(server.build(), mode="auto", cache=None, extensions=[TasksExtension()]) as client:
            await got(client, CALL_ID)

    with pytest.raises(ExceptionGroup) as told:
        asyncio.run(use())
    assert told.group_contains(MCPError, match="E_BROKER_UNREACHABLE: Redis is away")


class ListenParams(RequestParams):
    notifications: dict[str, Any]


class Listen(Request[ListenParams, Literal["subscriptions/listen"]]):
    method: Literal["subscriptions/listen"] = "subscriptions/listen"


def test_task_notifications_are_refused_without_client_extension() -> None:
    async def use() -> int:
        server = AgentServer(FakeAsyncClient().as_client, "coder", look_seconds=60)
        async with Client(server.build(), mode="auto", cache=None) as client:
            params = ListenParams(notifications={"taskIds": ["one"]})
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(Listen(params=params), EmptyResult)
        return refused.value.code

    assert asyncio.run(use()) == MISSING_REQUIRED_CLIENT_CAPABILITY
