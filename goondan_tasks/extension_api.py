"""What the author of an extension sees: the context of the ``toolCall`` pipeline (003 §6.3)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.messages import JsonObject

__all__ = ["ToolCallContext", "ToolCallMiddleware"]


@dataclass(slots=True)
class ToolCallContext:
    """One tool call on its way through the middlewares.

    The object is shared by all of them: what one changes in ``args`` or ``metadata``, the next one
    and the handler see.
    """

    tool_name: str
    tool_call_id: str
    args: JsonObject
    metadata: JsonObject = field(default_factory=dict)


ToolCallMiddleware = Callable[[ToolCallContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
