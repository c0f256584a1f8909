"""The context of a call, of which each field is made when it is read; contexts for other processes."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import EmitOutput, Logger, ReportProgress, ToolContext, reaches_agents
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.output import emit_nowhere
from workers.cancellation import Cancellation
from workers.concurrency.slots import ReleasedSlot, Wait
from workers.concurrency.waits import Waits

#: the fields of which each is made by itself, from the job
_PARTS: Mapping[str, Callable[["PlainContext"], Any]] = {
    "agent_name": lambda ctx: ctx._job.agent,
    "instance_key": lambda ctx: ctx._job.read()["instanceKey"],
    "turn_id": lambda ctx: ctx._job.read()["turnId"],
    "trace_id": lambda ctx: ctx._job.read()["traceId"],
    "tool_call_id": lambda ctx: ctx._job.shown_id,
    "logger": lambda ctx: ctx._services.logger(ctx._job),
    "workdir": lambda ctx: ctx._services.workdir(ctx._job),
    "progress": lambda ctx: ctx._services.progress(ctx._job),
    "emit": lambda ctx: ctx._services.emit(ctx._job),
    "deadline": lambda ctx: datetime.now(UTC) + timedelta(seconds=ctx._job.seconds_left),
    "_is_cancelled": lambda ctx: ctx._job.ensure_cancellation().is_set,
}
#: the others, which are made together: few handlers use them
_REST = tuple({field.name for field in fields(ToolContext)} - _PARTS.keys())


class PlannedCall(Protocol):
    """What the context takes from a claimed call (:class:`workers.job.Job`)."""

    agent: str

    @property
    def seconds_left(self) -> float:
        """How many seconds the time limit leaves for the handler."""

    @property
    def shown_id(self) -> str:
        """The id of the call that its handler is shown."""

    def read(self) -> JsonObject:
        """Return the call's wire record."""

    @property
    def original(self) -> ToolCall:
        """The call as it was submitted."""

    @property
    def around(self) -> ToolCallContext | None:
        """The context of the middlewares around the handler."""

    def ensure_cancellation(self) -> Cancellation:
        """Return the call's cancellation."""


class ContextServices(Protocol):
    """Makes what the context of a planned call needs of the worker."""

    def logger(self, job: Any) -> Logger:
        """Return the call's logger."""

    def workdir(self, job: Any) -> Path:
        """Return the call's workdir, and make it on first use."""

    def progress(self, job: Any) -> ReportProgress:
        """Return what reports the call's progress."""

    def emit(self, job: Any) -> EmitOutput:
        """Return what emits the call's output."""

    def context(self, job: Any) -> Any:
        """Make the whole context: a ToolContext, or the AgentContext of a Turn."""

    def release_slot(self, job: Any, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the call's slot while it waits."""


class PlainContext(ToolContext):
    """The context of a call: a field is made when its handler first reads it."""

    __slots__ = ("_job", "_services", "_wire")
    _job: PlannedCall

    def __init__(
        self, job: PlannedCall, services: ContextServices, wire: Callable[[], JsonObject] | None = None
    ) -> None:
        object.__setattr__(self, "_job", job)
        object.__setattr__(self, "_services", services)
        object.__setattr__(self, "_wire", wire)

    def wire(self) -> JsonObject | None:
        """Return the context for a handler in another process; ``None`` if the whole context is needed."""
        return None if self._wire is None else self._wire()

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            value = _PARTS[name](self)
            object.__setattr__(self, name, value)
            return value
        if name not in _REST:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = self._services.context(self._job)
        for field in _REST:
            object.__setattr__(self, field, getattr(made, field))
        return getattr(self, name)


def call_of(ctx: PlainContext) -> PlannedCall:
    """Return the call that a context is of; handlers of tools know nothing of it."""
    return ctx._job


def whole_of(ctx: PlainContext) -> Any:
    """Make the whole context of a call: a ToolContext, or the AgentContext of a Turn; this may block."""
    return ctx._services.context(ctx._job)


def waits_of(ctx: PlainContext) -> Waits:
    """Return the waits of a call that does nothing but wait."""
    release_slot = partial(ctx._services.release_slot, ctx._job)
    return Waits(release_slot, lambda: ctx._job.ensure_cancellation().is_over)


def wire_of(ctx: ToolContext) -> JsonObject:
    """Return a context in the form for another process: an isolated child, or a host of JavaScript."""
    if isinstance(ctx, PlainContext) and (wire := ctx.wire()) is not None:
        return wire
    return {
        "agentName": ctx.agent_name,
        "instanceKey": ctx.instance_key,
        "turnId": ctx.turn_id,
        "traceId": ctx.trace_id,
        "toolCallId": ctx.tool_call_id,
        "message": ctx.message.to_wire(),
        "workdir": str(ctx.workdir),
        "deadline": None if ctx.deadline is None else ctx.deadline.timestamp() * 1000,
        "runtime": reaches_agents(ctx),
        "followed": ctx.emit is not emit_nowhere,
        "callbackUrl": _callback_of(ctx),
    }


def _callback_of(ctx: ToolContext) -> str | None:
    with contextlib.suppress(ToolError):  # no public URL is set
        return ctx.callback_url
    return None
