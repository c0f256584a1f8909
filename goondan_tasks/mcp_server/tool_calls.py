"""The tool calls of MCP clients: submitted like any producer's, waited for, cancelled with the request."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

import anyio
from mcp_types import CallToolResult

from broker_config import serializer
from goondan_tasks.client import AsyncClient, PendingCall
from goondan_tasks.errors import BrokerUnreachableError, GoondanError, WaitTimeout
from goondan_tasks.mcp_server.content import content_of, may_begin_content
from goondan_tasks.mcp_server.results import call_tool_result, refused
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.new_call import CallFields
from goondan_tasks.progress import ProgressReport

#: how often the progress of a call is looked at
PROGRESS_SECONDS = 0.5
#: how long telling Redis of a cancel may take, and how long a cancelled call may take to end
CANCEL_SECONDS = 5.0
#: how long Redis may be away until a client that waits is told so: the call goes on, and whoever was told
#: that it failed would make it again
OUTAGE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
#: the largest content that is read from its file
CONTENT_BYTES = 16 * 1024 * 1024
#: how long each part of it is waited for
READ_SECONDS = 30.0
Report = Callable[[ProgressReport], Awaitable[None]]


class ToolCalls:
    """Runs calls on the workers of one agent."""

    def __init__(self, client: AsyncClient, agent: str, help_url: str) -> None:
        self._client = client
        self._agent = agent
        self._help_url = help_url
        self._waiting: set[str] = set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_closing = False

    async def run(
        self, tool: str, args: Any, report: Report | None = None, **fields: Unpack[CallFields]
    ) -> CallToolResult:
        """Submit a call and wait for its final result, that of a pending one included.

        ``report`` is told of its progress. If the wait is cancelled, so is the call.
        """
        call_id = None
        try:
            # what nobody waits for any more must have an id to be cancelled by
            with anyio.CancelScope(shield=True):
                call = await self._client.submit(self._agent, tool, args, **fields)
            call_id = call.id
            self._waiting.add(call_id)
            self._all_answered.clear()
            return call_tool_result(await self._with_content(await self._followed(call, report)))
        except GoondanError as error:
            return refused(error, self._help_url, call_id)

    async def cancel_all(self) -> None:
        """Cancel every call that somebody waits for, and those to come; let them be answered.

        Takes a few times :data:`CANCEL_SECONDS` at most.
        """
        self._is_closing = True
        await asyncio.gather(*(self._cancel(call_id) for call_id in self._waiting))
        with anyio.move_on_after(CANCEL_SECONDS):
            await self._all_answered.wait()

    async def _followed(self, call: PendingCall, report: Report | None) -> ToolCallResult:
        try:
            if self._is_closing:
                await self._cancel(call.id)
            return await _final(call, None if report is None else _increasing(report))
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._cancel(call.id)
            raise
        finally:
            self._waiting.discard(call.id)
            if not self._waiting:
                self._all_answered.set()

    async def _with_content(self, result: ToolCallResult) -> ToolCallResult:
        """Return a result with the whole of its output if that was too large for it, and is content."""
        if result.meta.output_file is None or not isinstance(result.output, dict):
            return result
        if result.output["size"] > CONTENT_BYTES or not may_begin_content(result.output["preview"]):
            return result
        try:
            output = serializer.decode(await self._whole_output(result.meta.id))
        except (GoondanError, WaitTimeout, serializer.NotJsonError):
            # the beginning, and the file's name, are there
            return result
        return result.model_copy(update={"output": output}) if content_of(output) is not None else result

    async def _whole_output(self, call_id: str) -> bytes:
        data = bytearray()
        offset: int | None = 0
        while offset is not None:
            part = await self._client.read_output(call_id, offset, timeout=READ_SECONDS)
            data += part.data
            offset = part.next_offset
        return bytes(data)

    async def _cancel(self, call_id: str) -> None:
        with anyio.move_on_after(CANCEL_SECONDS), contextlib.suppress(GoondanError):
            await self._client.cancel(call_id)


async def _final(call: PendingCall, report: Report | None) -> ToolCallResult:
    """Wait for the final result; an outage of Redis ends no call, so its end is waited for, too."""
    while True:
        try:
            return await (call.wait(wait_pending=True) if report is None else _reported(call, report))
        except BrokerUnreachableError:
            await _until_back(call)


async def _until_back(call: PendingCall) -> None:
    """Wait until Redis answers again.

    Raises:
        BrokerUnreachableError: it stays away.
    """
    end = time.monotonic() + OUTAGE_SECONDS
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            await asyncio.to_thread(call.status)
        except BrokerUnreachableError:
            if time.monotonic() >= end:
                raise
        else:
            return


async def _reported(call: PendingCall, report: Report) -> ToolCallResult:
    while True:
        try:
            result = await call.wait(PROGRESS_SECONDS, wait_pending=True)
        except WaitTimeout:
            result = None
        progress = await asyncio.to_thread(call.progress)
        if progress is not None:
            for told in (*progress.earlier, progress):
                await report(told)
        if result is not None:
            return result


def _increasing(report: Report) -> Report:
    """Report each progress that is further than the one before, as MCP wants it; so none is told twice."""
    reported = -1.0

    async def pass_on(progress: ProgressReport) -> None:
        nonlocal reported
        if progress.done > reported:
            reported = progress.done
            await report(progress)

    return pass_on
