"""For whom extension code runs at this moment."""

from contextvars import ContextVar

from goondan_tasks.messages import ToolCall

#: the call, event or opening of a Step that is carried out; ``None`` in ``register`` and in the background
running: ContextVar[ToolCall | None] = ContextVar("running", default=None)


def running_for(agent: str) -> ToolCall | None:
    """Return what is carried out at this moment, if that is for ``agent``."""
    call = running.get()
    return call if call is not None and call.agent_name == agent else None
