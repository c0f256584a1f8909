"""Tasks of MCP servers that calls wait for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import structlog
from mcp_types import CallToolResult, TextContent

from goondan_tasks.contract.errors import McpError, ToolError
from workers.mcp.suspended import RemoteTask, SuspendedCalls
from workers.mcp.tasks import (
    MOST_MISSING,
    MOST_QUESTIONS,
    RemoteTasks,
    ServerAwayError,
    TaskServer,
    TaskState,
    UnreadableAnswerError,
)

TASK = RemoteTask("far", "task:1")


@dataclass
class Calls:
    """The calls that wait, in memory; ``told`` is what is done with them."""

    waits: dict[str, RemoteTask] = field(default_factory=lambda: {"call": TASK})
    is_free: bool = True
    given_up: bool = False
    told: list[tuple[Any, ...]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def waiting(self, agent: str) -> dict[str, RemoteTask]:
        assert agent == "clerk"
        return dict(self.waits)

    def take(self, call_ids: Sequence[str], seconds: float) -> set[str]:
        return set(call_ids) if self.is_free else set()

    def put_off(self, call_id: str, seconds: float) -> None:
        self.told.append(("later", seconds))

    def is_given_up(self, call_id: str) -> bool:
        return self.given_up

    def complete(self, call_id: str, output: Any) -> None:
        self.ended.add(call_id)
        self.told.append(("ok", output))

    def fail(self, call_id: str, error: Exception) -> None:
        self.told.append((type(error).__name__, str(error)))


@dataclass
class Server:
    """A server that answers each question with the next state or error."""

    answers: list[TaskState | Exception] = field(default_factory=list)
    has_tasks: bool = True
    cancelled: list[str] = field(default_factory=list)

    async def task(self, task_id: str) -> TaskState:
        assert task_id == TASK.id
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def cancel_task(self, task_id: str) -> None:
        self.cancelled.append(task_id)


def output(result: CallToolResult) -> Any:
    """Return the text of a result, or raise it."""
    [block] = result.content
    assert isinstance(block, TextContent)
    if result.is_error:
        raise ToolError(block.text)
    return block.text


def remote(calls: Calls, server: Server) -> RemoteTasks:
    """Make what asks the server."""
    servers = {"far": TaskServer(server, output, lambda text: text.replace("secret", "***"))}
    return RemoteTasks("clerk", servers, cast(SuspendedCalls, calls), structlog.get_logger())


def looked(calls: Calls, server: Server, times: int = 1) -> list[tuple[Any, ...]]:
    """Look at the calls some times, and return what was done with them."""

    async def look() -> None:
        tasks = remote(calls, server)
        for _ in range(times):
            await tasks.look()
            await tasks.settled()

    asyncio.run(look())
    return calls.told


def state(status: str, **fields: Any) -> TaskState:
    """Make an answer to ``tasks/get``."""
    return TaskState.model_validate({"status": status, **fields})


def said(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """Make the result of a tool."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


ASKED = {"one": {"method": "elicitation/create", "params": {"message": "Which secret?"}}}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (state("working"), ("later", 2.0)),
        (state("working", pollIntervalMs=1), ("later", 0.5)),
        (state("working", pollIntervalMs=4_000), ("later", 4.0)),
        (state("working", pollIntervalMs=1e12), ("later", 30.0)),
        (state("working", pollIntervalMs=float("inf")), ("later", 30.0)),
        (state("working", pollIntervalMs=float("nan")), ("later", 2.0)),
        (state("completed", result=said("done")), ("ok", "done")),
        (state("completed", result=said("no disk", is_error=True)), ("ToolError", "no disk")),
        (state("completed"), ("McpError", "MCP server 'far' sent no result.")),
        (state("failed", error={"message": "a secret"}), ("McpError", "MCP server 'far' failed: a ***")),
        (state("failed", error={}), ("McpError", "MCP server 'far' failed.")),
        (state("cancelled"), ("McpError", "MCP server 'far' has cancelled the task.")),
        (ServerAwayError("it is down"), ("later", 2.0)),
        (McpError("it knows no such task"), ("McpError", "it knows no such task")),
    ],
)
def test_servers_task_state_decides_outcome_of_call(
    answer: TaskState | Exception, told: tuple[Any, ...]
) -> None:
    server = Server([answer])

    assert looked(Calls(), server) == [told]
    assert server.cancelled == []


def test_third_consecutive_unreadable_answer_fails_call() -> None:
    unreadable = UnreadableAnswerError("it is too long")
    server = Server([unreadable, unreadable, state("working"), unreadable, unreadable, unreadable])

    later = ("later", 2.0)
    assert looked(Calls(), server, times=6) == [later] * 5 + [("McpError", "it is too long")]


@pytest.mark.parametrize(
    ("requests", "told"),
    [(ASKED, "here: Which ***?"), ({}, "here."), ({"one": 7}, "here."), ({"one": {"params": 7}}, "here.")],
)
def test_task_asking_for_input_is_cancelled_failing_call(requests: Any, told: str) -> None:
    server = Server([state("input_required", inputRequests=requests)])

    [(error, message)] = looked(Calls(), server)

    assert (error, server.cancelled) == ("McpError", [TASK.id])
    assert message.endswith(told)


@pytest.mark.parametrize(("has_tasks", "is_free"), [(False, True), (True, False)])
def test_server_down_or_asked_elsewhere_is_skipped(has_tasks: bool, is_free: bool) -> None:
    assert looked(Calls(is_free=is_free), Server(has_tasks=has_tasks)) == []


def test_calls_beyond_one_batch_are_eventually_checked() -> None:
    calls = Calls({f"call-{number}": TASK for number in range(2 * MOST_QUESTIONS + 3)})
    server = Server()
    server.answers += [state("completed", result=said("done"))] * 4 * MOST_QUESTIONS

    looked(calls, server, times=3)

    assert calls.ended == set(calls.waits)


@pytest.mark.parametrize("given_up", [True, False])
def test_given_up_calls_task_is_cancelled_once(given_up: bool) -> None:
    calls, server = Calls(), Server([state("working")])

    async def look() -> None:
        tasks = remote(calls, server)
        await tasks.look()
        await tasks.settled()
        calls.waits.clear()
        calls.given_up = given_up
        for _ in range(3):
            await tasks.look()
            await tasks.settled()

    asyncio.run(look())
    assert server.cancelled == [TASK.id] * given_up


@pytest.mark.parametrize("appears", [True, False])
def test_task_whose_call_never_waits_is_cancelled(appears: bool) -> None:
    calls, server = Calls({}, is_free=False), Server()

    async def look() -> None:
        tasks = remote(calls, server)
        tasks.note(TASK)
        for number in range(MOST_MISSING + 2):
            if appears and number == MOST_MISSING - 1:
                calls.waits["call"] = TASK
            await tasks.look()

    asyncio.run(look())
    assert server.cancelled == ([] if appears else [TASK.id])


@pytest.mark.parametrize("handle", ["job-1", "mcp-task:", "mcp-task:far", "mcp-task:far:", "mcp-task::x", ""])
def test_other_handles_name_no_task(handle: str) -> None:
    assert RemoteTask.of(handle) is None
    assert RemoteTask.of(TASK.handle) == TASK
