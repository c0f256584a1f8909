"""What the author of an agent sees: ``handle(ctx, event)`` and its :class:`AgentContext`.

An Agent with ``spec.entry``, a Python file with ``handle``, plain or ``async``, handles its events in a
worker. What ``handle`` returns must be JSON and is the answer to a request. An exception that it raises is
the error that the asker gets.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.errors import HandoffError
from goondan_tasks.messages import AgentEvent, JsonObject
from goondan_tasks.tool_api import AgentRuntime, Logger, ReportProgress

__all__ = [
    "AgentContext",
    "AgentEvent",
    "AgentHandler",
    "AgentRuntime",
    "HandoffError",
    "JsonObject",
    "ToolCaller",
]

AgentHandler = Callable[["AgentContext", AgentEvent], Any | Awaitable[Any]]


class ToolCaller(Protocol):
    """Calls tools of the agent's own catalog, through its queue."""

    def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> Any:
        """Call one tool and wait for its ToolCallResult, which is an error if it failed.

        ``timeout`` limits the run, in seconds.
        """

    def call_many(self, calls: Iterable[Mapping[str, Any] | tuple[str, Any]]) -> Any:
        """Call many tools side by side; their results come in the order of ``calls``.

        Each is ``(tool, args)``, or a dict of ``toolName`` and ``args``.
        """


def _no_steps(_: JsonObject | None) -> Any:
    raise HandoffError("Steps are opened by a worker only.")


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent knows of the Turn in which it handles an event."""

    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    correlation_id: str
    #: what ``handle`` is called with
    event: AgentEvent
    #: the instance's directory, which exists
    workdir: Path
    logger: Logger
    #: the other agents of the swarm
    runtime: AgentRuntime
    #: reports how far the Turn is; the asker can read it
    progress: ReportProgress
    tools: ToolCaller = field(repr=False)
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    #: the moment (UTC) the Turn must end; ``None`` without a limit
    deadline: datetime | None = None
    _is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    _step: Callable[[JsonObject | None], Any] = field(default=_no_steps, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled or is past its limit."""
        return self._is_cancelled()

    def step(self, message: JsonObject | None = None) -> Any:
        """Return the next Step of the Turn: ``async with ctx.step() as step``, in plain code ``with``.

        ``step`` is a :class:`goondan_tasks.extension_api.AgentStep`.

        ``message`` is what it begins with, for the step middlewares. Entering it raises a StepLimitError
        after ``policy.maxStepsPerTurn`` Steps, and a MiddlewareError if a middleware fails.
        """
        return self._step(message)

    def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> Any:
        """Call a tool; see :meth:`ToolCaller.call`."""
        return self.tools.call(tool, args, timeout=timeout)

    def call_many(self, calls: Iterable[Mapping[str, Any] | tuple[str, Any]]) -> Any:
        """Call many tools; see :meth:`ToolCaller.call_many`."""
        return self.tools.call_many(calls)
