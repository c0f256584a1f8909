"""The tool calls of MCP clients: submitted like any producer's, waited for, cancelled with the request."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

import anyio
from mcp_types import CallToolResult

from goondan_tasks.client import AsyncClient, PendingCall
from goondan_tasks.errors import GoondanError, WaitTimeout
from goondan_tasks.mcp_server.results import call_tool_result, refused
from goondan_tasks.new_call import CallFields
from goondan_tasks.progress import Progress

#: how often the progress of a call is looked at
PROGRESS_SECONDS = 0.5
#: how long telling Redis of a cancel may take when the client has gone
CANCEL_SECONDS = 5.0

Report = Callable[[Progress], Awaitable[None]]


class ToolCalls:
    """Runs calls on the workers of one agent."""

    def __init__(self, client: AsyncClient, agent: str, help_url: str) -> None:
        self._client = client
        self._agent = agent
        self._help_url = help_url
        self._waiting: set[str] = set()

    async def run(
        self, tool: str, args: Any, report: Report | None = None, **fields: Unpack[CallFields]
    ) -> CallToolResult:
        """Submit a call and wait for its final result, that of a pending one included.

        ``report`` is told of its progress. If the wait is cancelled, so is the call.
        """
        try:
            # what nobody waits for any more must have an id to be cancelled by
            with anyio.CancelScope(shield=True):
                call = await self._client.submit(self._agent, tool, args, **fields)
            self._waiting.add(call.id)
            return call_tool_result(await self._followed(call, report))
        except GoondanError as error:
            return refused(error, self._help_url)

    async def cancel_all(self) -> None:
        """Cancel every call that somebody waits for, within :data:`CANCEL_SECONDS`."""
        await asyncio.gather(*(self._cancel(call_id) for call_id in self._waiting))

    async def _followed(self, call: PendingCall, report: Report | None) -> Any:
        try:
            if report is None:
                return await call.wait(wait_pending=True)
            return await _reported(call, report)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._cancel(call.id)
            raise
        finally:
            self._waiting.discard(call.id)

    async def _cancel(self, call_id: str) -> None:
        with anyio.move_on_after(CANCEL_SECONDS), contextlib.suppress(GoondanError):
            await self._client.cancel(call_id)


async def _reported(call: PendingCall, report: Report) -> Any:
    """Wait for the result, and report each progress that is further than the one before, as MCP wants it."""
    reported = -1.0
    while True:
        try:
            result = await call.wait(PROGRESS_SECONDS, wait_pending=True)
        except WaitTimeout:
            result = None
        progress = await asyncio.to_thread(call.progress)
        if progress is not None and progress.done > reported:
            reported = progress.done
            await report(progress)
        if result is not None:
            return result
