"""The context of a plain call, made only if its handler uses it, and contexts for other processes."""

import contextlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from goondan_tasks.errors import ToolError
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import ToolContext, reaches_agents

_CONTEXT_FIELDS = tuple(field.name for field in fields(ToolContext))


class PlainContext(ToolContext):
    """The context of a plain call, made when its handler first reads a field."""

    __slots__ = ("_make", "_wire")

    def __init__(self, make: Callable[[], ToolContext], wire: Callable[[], JsonObject] | None = None) -> None:
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_wire", wire)

    def wire(self) -> JsonObject | None:
        """Return the context for a handler in another process; ``None`` if the whole context is needed."""
        return None if self._wire is None else self._wire()

    def __getattr__(self, name: str) -> Any:
        if name not in _CONTEXT_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = self._make()
        for field in _CONTEXT_FIELDS:
            object.__setattr__(self, field, getattr(made, field))
        return getattr(made, name)


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
        "callbackUrl": _callback_of(ctx),
    }


def _callback_of(ctx: ToolContext) -> str | None:
    with contextlib.suppress(ToolError):  # no public URL is set
        return ctx.callback_url
    return None
