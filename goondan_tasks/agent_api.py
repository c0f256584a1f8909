"""What the author of an agent sees: ``handle(ctx, event)`` and its :class:`AgentContext`.

An Agent with ``spec.entry``, a Python file with ``handle``, plain or ``async``, handles its events in a
worker. What ``handle`` returns must be JSON and is the answer to a request. An exception that it raises is
the error that the asker gets.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.errors import HandoffError
from goondan_tasks.messages import AgentEvent, JsonObject, Message
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


def _no_steps(*_: Any) -> Any:
    raise HandoffError("Steps are opened by a worker only.")


async def _no_thinking(*_: Any) -> Any:
    raise HandoffError("Models are asked by a worker only.")


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
    _step: Callable[..., Any] = field(default=_no_steps, repr=False)
    _think: Callable[..., Awaitable[Any]] = field(default=_no_thinking, repr=False)
    #: the Agent's system prompt, its names filled in; empty if it has none
    prompt: str = ""
    #: the Agent's model: ``{name, provider, model, baseUrl, params}``; ``None`` if it has none
    model: JsonObject | None = None

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

    async def think(self, messages: Sequence[JsonObject | Message] | None = None) -> Any:
        """Run the loop of an agent that thinks: ask the Agent's model, run its tool calls, until it stops.

        ``messages``, of 004 or ``{role, content}``, are what it begins with, by default the event alone: what
        an Agent with an entry has said before is its own to remember. Return the answer: text, or JSON with
        an ``outputSchema``.

        Raises:
            ModelError: the model cannot be asked, or its answers cannot be used.
            HandoffError: the Agent has no ``modelConfig``.
        """
        return await self._think(self, messages)

    def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> Any:
        """Call a tool; see :meth:`ToolCaller.call`."""
        return self.tools.call(tool, args, timeout=timeout)

    def call_many(self, calls: Iterable[Mapping[str, Any] | tuple[str, Any]]) -> Any:
        """Call many tools; see :meth:`ToolCaller.call_many`."""
        return self.tools.call_many(calls)
