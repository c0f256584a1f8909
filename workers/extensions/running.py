"""For whom extension code runs at this moment."""

from contextvars import ContextVar

from goondan_tasks.messages import ToolCall
from workers.job import Job

#: the call, event or opening of a Step that is carried out; ``None`` in ``register`` and in the background
running: ContextVar[ToolCall | Job | None] = ContextVar("running", default=None)


def running_call() -> ToolCall | None:
    """Return what is carried out at this moment, if anything is."""
    call = running.get()
    return call.claim.run.call if isinstance(call, Job) else call


def running_for(agent: str) -> ToolCall | None:
    """Return what is carried out at this moment, if that is for ``agent``."""
    call = running_call()
    return call if call is not None and call.agent_name == agent else None
