"""The calls of MCP clients: submitted, awaited during outages of Redis too, and answered as MCP answers."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

import anyio
from mcp_types import CallToolResult

from broker_config import serializer
from broker_config.connections import reporting_outages
from goondan_tasks.client import AsyncClient, AsyncPendingCall
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError, WaitTimeout
from goondan_tasks.contract.mcp_content import call_tool_result, content_of, may_begin_content, refused
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import ProgressReport

#: the interval at which the progress of a call is read
PROGRESS_SECONDS = 0.5
#: the limit of sending a cancel, and of the time until a cancelled call has ended
CANCEL_SECONDS = 5.0
#: how long Redis may be away before a waiting client gets an error: clients might repeat the call, which
#: goes on
OUTAGE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
#: the largest content that is read from a file
CONTENT_BYTES = 16 * 1024 * 1024
#: the limit for each part of it
READ_SECONDS = 30.0
Report = Callable[[ProgressReport], Awaitable[None]]
Answer = TypeVar("Answer")


class ToolCalls:
    """Runs calls on the workers of one agent."""

    def __init__(self, client: AsyncClient, agent: str, help_url: str) -> None:
        self._client = client
        self._agent = agent
        self._help_url = help_url
        self._waiting: set[str] = set()
        #: how many calls are not answered; those that are being submitted have no id yet
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_closing = False

    async def run(
        self,
        tool: str,
        args: Any,
        report: Report | None = None,
        patience: float = math.inf,
        **fields: Unpack[CallFields],
    ) -> CallToolResult | AsyncPendingCall:
        """Submit a call and wait for its final result, even if it becomes pending.

        ``report`` gets the progress. Cancelling this cancels the call. A call that has not ended within
        ``patience`` seconds is returned itself, and goes on.
        """
        call_id = None
        self._unanswered += 1
        self._all_answered.clear()
        try:
            # shielded, since cancelling the call needs its id
            with anyio.CancelScope(shield=True):
                call = await self._client.submit(self._agent, tool, args, **fields)
            call_id = call.id
            self._waiting.add(call_id)
            result = await self._followed(call, report, patience)
            return call if result is None else await self.answer(result)
        except GoondanError as error:
            return refused(error, self._help_url, call_id)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._all_answered.set()

    async def answer(self, result: ToolCallResult) -> CallToolResult:
        """Convert a final result, with its whole output if that is content stored in a file."""
        return call_tool_result(await self._with_content(result))

    async def cancel_all(self) -> None:
        """Cancel all running and future calls, and wait until they are answered.

        This takes at most a few times :data:`CANCEL_SECONDS`.
        """
        self._is_closing = True
        await asyncio.gather(*(self._cancel(call_id) for call_id in self._waiting))
        with anyio.move_on_after(CANCEL_SECONDS):
            await self._all_answered.wait()

    async def _followed(
        self, call: AsyncPendingCall, report: Report | None, patience: float
    ) -> ToolCallResult | None:
        """Wait for the final result; ``None`` if the patience ends first."""
        try:
            if self._is_closing:
                await self._cancel(call.id)
            with reporting_outages(), anyio.move_on_after(patience):
                return await _final(call, report)
            return None
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._cancel(call.id)
            raise
        finally:
            self._waiting.discard(call.id)

    async def _with_content(self, result: ToolCallResult) -> ToolCallResult:
        if result.meta.output_file is None or not isinstance(result.output, dict):
            return result
        if result.output["size"] > CONTENT_BYTES or not may_begin_content(result.output["preview"]):
            return result
        try:
            output = serializer.decode(await self._whole_output(result.meta.id))
        except (GoondanError, serializer.NotJsonError):
            return result  # it has the beginning of the output and the name of its file
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


async def _final(call: AsyncPendingCall, report: Report | None) -> ToolCallResult:
    """Wait for the final result, also during an outage of Redis.

    ``report`` gets only increasing progress, as MCP requires.
    """
    reported, result, progress = -1.0, None, None
    while True:
        try:
            with contextlib.suppress(WaitTimeout):
                result = await call.result(None if report is None else PROGRESS_SECONDS, wait_pending=True)
            if report is not None:
                progress = await call.progress()
        except BrokerUnreachableError:
            await asyncio.sleep(PAUSE_SECONDS)
            await through_outages(call.status)
            continue
        if report is not None and progress is not None:
            for latest in (*progress.earlier, progress):
                if latest.done > reported:
                    reported = latest.done
                    await report(latest)
        if result is not None:
            return result


async def through_outages(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask Redis until it answers.

    Raises:
        BrokerUnreachableError: it does not within :data:`OUTAGE_SECONDS`.
    """
    end = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            return await ask()
        except BrokerUnreachableError:
            if time.monotonic() >= end:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
