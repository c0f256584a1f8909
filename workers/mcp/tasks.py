"""MCP Tasks (``io.modelcontextprotocol/tasks``, 2026-07-28) of servers: calls that end at the server, later.

A call whose server answers with a task becomes pending, so nothing of a worker waits for it. All workers of
the agent look at such calls, and one of them at a time asks the server.
"""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import Field
from redis.exceptions import RedisError

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.contract.errors import BrokerUnreachableError, McpError, ToolError
from workers.mcp.suspended import RemoteTask, SuspendedCalls

EXTENSION = "io.modelcontextprotocol/tasks"
#: the interval at which pending calls are looked at
LOOK_SECONDS = 0.5
#: how long one question may take, and how soon another worker asks if this one dies
QUESTION_SECONDS = 20.0
#: the limits of the interval that a server asks for, and the interval while it is away
LEAST_SECONDS, USUAL_SECONDS, MOST_SECONDS = 0.5, 2.0, 30.0
AWAY_SECONDS = 2.0
#: how many questions are asked at once
MOST_QUESTIONS = 16
#: about how many calls it is found out in one look whether their time has come
MOST_LOOKED_AT = 1_000
#: after how many answers in a row that cannot be read a call fails
MOST_UNREADABLE = 3
#: in how many looks a new task may be missing before its call counts as given up
MOST_MISSING = 20
#: the longest id of a task that is accepted
LONGEST_ID = 500


class CreatedTask(Result):
    """A server's answer to ``tools/call``: the call goes on as a task."""

    result_type: Literal["task"] = "task"
    task_id: str = Field(min_length=1, max_length=LONGEST_ID)
    status_message: str | None = None


class TaskState(Result):
    """A server's answer to ``tasks/get``."""

    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, Any] | None = None
    result: CallToolResult | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class TaskCreatedError(Exception):
    """The result of a call is a task; raised through the SDK, which would wait for its end."""

    def __init__(self, task: CreatedTask) -> None:
        super().__init__(task.task_id)
        self.task = task


async def _raise_created(task: CreatedTask, _: ClaimContext) -> CallToolResult:
    raise TaskCreatedError(task)


class TasksExtension(ClientExtension):
    """Declares the extension to a server; its tasks are raised as TaskCreatedError."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        """Take tasks as results of calls."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_raise_created)]


class ServerAwayError(Exception):
    """A server cannot be asked now; later it may answer."""


class UnreadableAnswerError(ServerAwayError):
    """What a server has answered about a task cannot be read: it is too long, or is not JSON."""


class Asked(Protocol):
    """A server that has begun tasks."""

    @property
    def has_tasks(self) -> bool:
        """Whether it is up, and has declared the extension."""

    async def task(self, task_id: str) -> TaskState:
        """Ask for a task.

        Raises:
            UnreadableAnswerError: the answer cannot be read.
            ServerAwayError: it does not answer now.
            McpError: there is no use in asking again.
        """

    async def cancel_task(self, task_id: str) -> None:
        """Cancel a task; raises as :meth:`task` does."""


@dataclass(frozen=True, slots=True)
class TaskServer:
    """A server, and how its answers are read."""

    asked: Asked
    #: returns the output of a call, or raises ToolError if the result is an error
    output: Callable[[CallToolResult], Any]
    #: masks secrets
    hide: Callable[[str], str]


class RemoteTasks:
    """Asks the servers of one agent about the tasks that its calls wait for, on one event loop."""

    def __init__(
        self, agent: str, servers: Mapping[str, TaskServer], calls: SuspendedCalls, log: Logger
    ) -> None:
        self._agent = agent
        self._servers = servers
        self._calls = calls
        self._log = log
        #: the calls that were seen to wait; those that no longer do are looked at once more
        self._seen: dict[str, RemoteTask] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}
        #: tasks begun here whose calls were not seen to wait yet, and in how many looks they may be missing
        self._begun: dict[RemoteTask, int] = {}
        #: how many answers in a row about a call could not be read
        self._unreadable: Counter[str] = Counter()

    def note(self, task: RemoteTask) -> None:
        """Expect a call to wait for a task; if none does, it was cancelled before, and the task is, too."""
        self._begun[task] = MOST_MISSING

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                # the heartbeat reports an outage
                with contextlib.suppress(RedisError, BrokerUnreachableError):
                    await self.look()
        finally:
            for question in self._asked.values():
                question.cancel()
            await self.settled()

    async def settled(self) -> None:
        """Wait until all questions that were begun are answered."""
        if self._asked:
            await asyncio.wait(self._asked.values())

    async def look(self) -> None:
        """Begin to ask about each task whose time has come."""
        if not any(server.asked.has_tasks for server in self._servers.values()):
            return
        waiting = await asyncio.to_thread(self._calls.waiting, self._agent)
        self._seen |= {call_id: task for call_id, task in waiting.items() if task.server in self._servers}
        seen = set(waiting.values())
        self._begun = {task: left - 1 for task, left in self._begun.items() if task not in seen}
        for task in [task for task, left in self._begun.items() if not left]:
            del self._begun[task]
            await self._cancel(self._servers[task.server], task)
        open_ids = [
            call_id
            for call_id, task in self._seen.items()
            if call_id not in self._asked and self._servers[task.server].asked.has_tasks
        ]
        for call_id in [call_id for call_id in open_ids if call_id not in waiting][: self._free]:
            self._begin(call_id, self._leave(call_id, self._seen[call_id]))
        await self._ask_due([call_id for call_id in open_ids if call_id in waiting][:MOST_LOOKED_AT])

    async def _ask_due(self, call_ids: list[str]) -> None:
        """Ask about those that no worker has asked about lately, as many as may be asked at once."""
        while call_ids and (free := self._free):
            some, call_ids = call_ids[:free], call_ids[free:]
            taken = await asyncio.to_thread(self._calls.take, some, QUESTION_SECONDS)
            for call_id in some:
                self._seen[call_id] = task = self._seen.pop(call_id)  # the others come first next time
                if call_id in taken:
                    self._begin(call_id, self._ask(call_id, task))

    @property
    def _free(self) -> int:
        return max(0, MOST_QUESTIONS - len(self._asked))

    def _begin(self, call_id: str, question: Coroutine[Any, Any, None]) -> None:
        self._asked[call_id] = asyncio.get_running_loop().create_task(self._done(call_id, question))

    async def _done(self, call_id: str, question: Awaitable[None]) -> None:
        try:
            await question
        except (RedisError, BrokerUnreachableError) as error:
            self._log.debug("mcp.task_not_asked", call_id=call_id, reason=str(error))
        finally:
            del self._asked[call_id]

    async def _ask(self, call_id: str, task: RemoteTask) -> None:
        server = self._servers[task.server]
        try:
            state = await server.asked.task(task.id)
        except UnreadableAnswerError as error:
            self._unreadable[call_id] += 1
            if self._unreadable[call_id] < MOST_UNREADABLE:
                await asyncio.to_thread(self._calls.put_off, call_id, AWAY_SECONDS)
            else:
                await asyncio.to_thread(self._calls.fail, call_id, McpError(str(error)))
            return
        except ServerAwayError:
            await asyncio.to_thread(self._calls.put_off, call_id, AWAY_SECONDS)
            return
        except McpError as error:
            await asyncio.to_thread(self._calls.fail, call_id, error)
            return
        self._unreadable.pop(call_id, None)
        if state.status == "working":
            await asyncio.to_thread(self._calls.put_off, call_id, _pause_of(state))
        elif state.status == "input_required":
            await asyncio.to_thread(self._calls.fail, call_id, _unanswerable(task, state, server.hide))
            await self._cancel(server, task)
        else:
            await self._end(call_id, task, state)

    async def _end(self, call_id: str, task: RemoteTask, state: TaskState) -> None:
        server = self._servers[task.server]
        if state.status == "completed" and state.result is not None:
            try:
                output = server.output(state.result)
            except ToolError as error:
                await asyncio.to_thread(self._calls.fail, call_id, error)
            else:
                await asyncio.to_thread(self._calls.complete, call_id, output)
            return
        told = (state.error or {}).get("message") or state.status_message
        what = {"cancelled": "has cancelled the task", "failed": "failed"}.get(state.status, "sent no result")
        message = f"MCP server {task.server!r} {what}" + (f": {server.hide(str(told))}" if told else ".")
        await asyncio.to_thread(self._calls.fail, call_id, McpError(message[:2_000]))

    async def _leave(self, call_id: str, task: RemoteTask) -> None:
        """Cancel the task of a call that was given up; one worker does."""
        taken: set[str] = set()
        if await asyncio.to_thread(self._calls.is_given_up, call_id):
            taken = await asyncio.to_thread(self._calls.take, [f"{call_id}:cancel"], QUESTION_SECONDS)
        if taken:
            await self._cancel(self._servers[task.server], task)
        del self._seen[call_id]
        self._unreadable.pop(call_id, None)

    async def _cancel(self, server: TaskServer, task: RemoteTask) -> None:
        try:
            await server.asked.cancel_task(task.id)
        except (ServerAwayError, McpError) as error:
            self._log.warning("mcp.task_not_cancelled", server=task.server, reason=server.hide(str(error)))


def _pause_of(state: TaskState) -> float:
    """Return after how many seconds the server wants to be asked again, within the limits."""
    asked = state.poll_interval_ms
    if asked is None or math.isnan(asked):
        return USUAL_SECONDS
    return min(max(asked / 1000, LEAST_SECONDS), MOST_SECONDS)


def _unanswerable(task: RemoteTask, state: TaskState, hide: Callable[[str], str]) -> McpError:
    request = next(iter((state.input_requests or {}).values()), None)
    params = request.get("params") if isinstance(request, dict) else None
    asked = params.get("message") if isinstance(params, dict) else None
    question = f": {hide(str(asked))[:500]}" if asked else "."
    return McpError(
        f"MCP server {task.server!r} asks for input that no user can give here{question}",
        suggestion="Give the tool everything it needs in its arguments, or configure the server not to ask.",
    )
