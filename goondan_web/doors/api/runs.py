"""Turns and calls as the API shows them, and the waits for their ends."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self
from urllib.parse import quote

from goondan_tasks.client import AsyncClient, AsyncPendingCall
from goondan_tasks.contract.calls import ENDED, Status
from goondan_tasks.contract.errors import WaitTimeout
from goondan_tasks.contract.messages import (
    ArgumentEdit,
    ToolCall,
    ToolCallError,
    WireModel,
    iso_time,
)
from goondan_tasks.contract.output import Progress
from goondan_tasks.history.attempts import time_of
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.api.operations import Asked, Reply
from goondan_web.doors.api.wire import LONGEST_WAIT


class RunView(WireModel):
    """What a Turn and a call have in common. ``output`` and ``error`` are those of the result."""

    id: str
    agent: str
    instance_key: str
    status: Status
    #: once there is a final result
    outcome: Literal["ok", "error"] | None
    output: Any
    error: ToolCallError | None
    correlation_id: str
    trace_id: str
    attempt: int
    worker: str | None
    #: whether it was cancelled
    cancelled: bool
    #: the limit that it waits for
    waiting_for: str | None
    not_before: str | None
    queued_at: str
    started_at: str | None
    finished_at: str | None
    #: the tokens that it used, for what asks models
    usage: dict[str, int] | None
    #: the addresses of what can be done with it
    links: dict[str, str]

    @property
    def has_ended(self) -> bool:
        """Whether the result is final."""
        return self.status in ENDED


class TurnView(RunView):
    """A Turn of an agent."""

    finish_reason: str | None

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        """Return the view of the record of a Turn's event."""
        result = record.known_result
        reason = None if result is None else result.meta.finish_reason
        return cls(
            **_fields(record), finish_reason=reason, links=links("turns", record.id, "events", "cancel")
        )


class EditView(ArgumentEdit):
    """A person's change of arguments, with an approval: those that were asked for, and those that run."""

    args: Any

    @classmethod
    def of(cls, call: ToolCall) -> Self | None:
        """Return the change of a call's arguments, if there is one."""
        return None if call.edited is None else cls(**dict(call.edited), args=call.args)


class CallView(RunView):
    """A call of an agent's tool."""

    tool: str
    #: of a pending call: what it waits for, until when, and the tool's name for it
    awaits: Literal["completion", "approval"] | None
    expires_at: str | None
    handle: str | None
    approved_by: str | None
    #: if a person has changed its arguments with the approval
    edited: EditView | None
    replayed_by: str | None
    progress: Progress | None
    #: the file in the workdir with an output that is too large for ``output``; the link has it, too
    output_file: str | None

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        """Return the view of the record of a call."""
        result = record.known_result
        return cls(
            **_fields(record),
            tool=record.call.tool_name,
            awaits=record.awaits,
            expires_at=time_of(record.expires_at),
            handle=record.handle,
            approved_by=record.approved_by,
            edited=EditView.of(record.call),
            replayed_by=record.replayed_by,
            progress=record.progress,
            output_file=None if result is None else result.meta.output_file,
            links=links("calls", record.id, "events", "output", "cancel", "resolve", "fail"),
        )


def _fields(record: CallRecord) -> dict[str, Any]:
    result = record.known_result
    return {
        "id": record.id,
        "agent": record.call.agent_name,
        "instance_key": record.call.instance_key,
        "status": record.status,
        "outcome": record.outcome,
        "output": None if result is None else result.output,
        "error": None if result is None else result.error,
        "correlation_id": record.call.correlation_id,
        "trace_id": record.call.trace_id,
        "attempt": record.attempt,
        "worker": record.worker,
        "cancelled": record.is_cancelled,
        "waiting_for": record.waiting_for,
        "not_before": time_of(record.not_before),
        "queued_at": iso_time(record.queued_at),
        "started_at": time_of(record.claimed_at),
        "finished_at": time_of(record.finished_at),
        "usage": None if result is None else result.meta.usage,
    }


def links(kind: str, run_id: str, *more: str) -> dict[str, str]:
    """Return the addresses of a Turn or a call, and of what belongs to it."""
    own = f"/v1/{kind}/{quote(run_id, safe='')}"
    return {"self": own, **{name: f"{own}/{name}" for name in more}}


class Waits:
    """The waits for results, none of which holds a thread; they end with the server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        #: set when the server ends
        self.over = asyncio.Event()

    async def end(self) -> None:
        """Have all waits answered with what there is."""
        self.over.set()

    async def until_ended(self, call: AsyncPendingCall, seconds: float) -> None:
        """Wait for the final result of a call, or until the time is up or the server ends.

        Raises:
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached when the time is up.
        """
        ending = asyncio.ensure_future(self.over.wait())
        result = asyncio.ensure_future(call.result(seconds, wait_pending=True))
        try:
            await asyncio.wait({ending, result}, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                with contextlib.suppress(WaitTimeout):
                    result.result()
        finally:
            for one in (ending, result):
                one.cancel()

    async def record(self, run_id: str, seconds: float = 0) -> CallRecord:
        """Return the record of a Turn or a call, once it has ended or the time is up.

        Raises:
            CallNotFoundError: there is none.
        """
        record = await self._client.record(run_id)
        if seconds <= 0 or record.has_ended:
            return record
        await self.until_ended(await self._client.pending(run_id), seconds)
        return await self._client.record(run_id)

    async def begun(
        self, call: AsyncPendingCall, asked: Asked, shown: Callable[[CallRecord], RunView]
    ) -> Reply:
        """Answer the request that has begun a Turn or a call, after the wait that it prefers."""
        seconds = preferred_wait(asked.request.headers.get("prefer", ""))
        if seconds:
            await self.until_ended(call, seconds)
        view = shown(await self._client.record(call.id))
        headers = {"Location": view.links["self"]}
        if seconds:
            headers["Preference-Applied"] = f"wait={seconds}"
        return Reply(view, 200 if view.has_ended else 202, headers)


def preferred_wait(prefer: str) -> int:
    """Return the seconds of ``wait=N`` in a header Prefer (RFC 7240), 0 without one that can be read."""
    for preference in prefer.split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        seconds = value.strip().strip('"')
        if name.strip().lower() == "wait" and seconds.isascii() and seconds.isdecimal():
            return min(int(seconds[:9]), LONGEST_WAIT)
    return 0


#: the header with which a request may be sent again
REPEATABLE = "Idempotency-Key"
#: the headers of requests that begin something
BEGINNING: Mapping[str, Mapping[str, Any]] = {
    REPEATABLE: {
        "description": "The same key with the same body begins nothing new, and has the same answer.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    },
    "Prefer": {
        "description": "`wait=N` waits up to N seconds (60 at most) for the end; without it, or with "
        "another value, the answer comes at once.",
        "schema": {"type": "string", "pattern": "^wait=[0-9]{1,2}$"},
    },
}
