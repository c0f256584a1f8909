"""A client of MCP Tasks: the official SDK's client, with the extension's result and methods."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    EmptyResult,
    Request,
    RequestParams,
    Result,
)
from pydantic import ConfigDict, Field

EXTENSION = "io.modelcontextprotocol/tasks"
PATIENCE = 60
ENDS = ("completed", "failed", "cancelled")


class Task(Result):
    """A CreateTaskResult, or the answer to ``tasks/get``."""

    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None


class DetailedTask(Task):
    result_type: Literal["complete"] = "complete"  # type: ignore[assignment]
    input_requests: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class UpdateTask(Request[TaskParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


async def _unresolved(_: Task, __: ClaimContext) -> CallToolResult:
    raise AssertionError("the tests poll tasks themselves")


async def unasked(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Stand for a user who can be asked; input requests of tasks do not come here."""
    raise AssertionError("the tests answer input requests themselves")


class TasksExtension(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        """Take tasks as results of calls."""
        return [ResultClaim(result_type="task", model=Task, resolve=_unresolved)]


async def begun(client: Client, tool: str, args: dict[str, Any]) -> CallToolResult | Task:
    """Call a tool; a task is returned as it is."""
    session: Any = client.session
    result: CallToolResult | Task = await session.call_tool(tool, args, allow_claimed=True)
    return result


async def got(client: Client, task_id: str) -> DetailedTask:
    """Ask for a task."""
    return await client.session.send_request(GetTask(params=TaskParams(task_id=task_id)), DetailedTask)


async def reached(client: Client, task_id: str, *statuses: str) -> DetailedTask:
    """Poll a task until it has one of these statuses."""
    return await seen(client, task_id, lambda task: task.status in statuses)


async def seen(client: Client, task_id: str, condition: Callable[[DetailedTask], bool]) -> DetailedTask:
    """Poll a task until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition(task := await got(client, task_id)):
        assert time.monotonic() < end and task.status not in ENDS, task
        await asyncio.sleep(0.02)
    return task


async def respond(client: Client, task_id: str, **responses: Any) -> None:
    """Answer input requests."""
    params = TaskParams(task_id=task_id, input_responses=responses)
    await client.session.send_request(UpdateTask(params=params), EmptyResult)


async def cancel(client: Client, task_id: str) -> None:
    """Cancel a task."""
    await client.session.send_request(CancelTask(params=TaskParams(task_id=task_id)), EmptyResult)
