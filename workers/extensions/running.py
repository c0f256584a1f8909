"""For whom extension code runs at this moment."""

from contextvars import ContextVar

from goondan_tasks.messages import ToolCall

#: the call, event or opening of a Step that is carried out; ``None`` in ``register`` and in the background
running: ContextVar[ToolCall | None] = ContextVar("running", default=None)
