"""The API for authors of agents: ``handle(ctx, event)`` and its :class:`AgentContext`.

``spec.entry`` of an Agent names a Python file with ``handle``, plain or ``async``, which handles the
agent's events in a worker. Its return value must be JSON and is the answer to a request; an exception is
the error that the asker gets.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.authoring.tool_api import AgentRuntime, Logger, ReportProgress
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import AgentEvent, JsonObject, Message

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
        """Call a tool and wait for its ToolCallResult; failures are results too.

        ``timeout`` limits the run, in seconds.
        """

    def call_many(self, calls: Iterable[Mapping[str, Any] | tuple[str, Any]]) -> Any:
        """Call many tools in parallel and return their results in the order of ``calls``.

        Each call is ``(tool, args)``, or a dict of ``toolName`` and ``args``.
        """


def _no_steps(*_: Any) -> Any:
    raise HandoffError("Only a worker can open Steps.")


async def _no_thinking(*_: Any) -> Any:
    raise HandoffError("Only a worker can ask models.")


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The context of the Turn in which an agent handles an event."""

    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    correlation_id: str
    #: the event that ``handle`` is called with
    event: AgentEvent
    #: the instance's existing directory
    workdir: Path
    logger: Logger
    #: the other agents of the swarm
    runtime: AgentRuntime
    #: reports the progress of the Turn to the asker
    progress: ReportProgress
    tools: ToolCaller = field(repr=False)
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    #: when the Turn must end (UTC); ``None``: no limit
    deadline: datetime | None = None
    _is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    _step: Callable[..., Any] = field(default=_no_steps, repr=False)
    _think: Callable[..., Awaitable[Any]] = field(default=_no_thinking, repr=False)
    #: numbers the thinkings, and has those that nothing has awaited yet
    _numbers: Iterator[int] = field(default_factory=count, repr=False)
    _unbegun: set[int] = field(default_factory=set, repr=False)
    #: the Agent's system prompt with its placeholders filled in; empty if it has none
    prompt: str = ""
    #: the Agent's model: ``{name, provider, model, baseUrl, params}``; ``None`` if it has none
    model: JsonObject | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled or is past its limit."""
        return self._is_cancelled()

    def step(self, message: JsonObject | None = None) -> Any:
        """Return the next Step of the Turn: ``async with ctx.step() as step``, in plain code ``with``.

        ``step`` is a :class:`goondan_tasks.extension_api.AgentStep`. ``message`` is what the Step begins
        with, for the step middlewares. Entering the block raises a StepLimitError after
        ``policy.maxStepsPerTurn`` Steps, and a MiddlewareError if a middleware fails.
        """
        return self._step(message)

    def think(self, messages: Sequence[JsonObject | Message] | None = None) -> Coroutine[Any, Any, Any]:
        """Ask the Agent's model and run its tool calls until it stops; return the answer.

        The conversation begins with ``messages`` (004, or ``{role, content}``), by default with the event
        alone: an Agent with an entry keeps its own history. The answer is text, or JSON if the Agent has an
        ``outputSchema``. Without ``messages``, that of the event takes its place.

        Raises:
            ModelError: the model cannot be reached, or its answers cannot be used.
            HandoffError: the Agent has no ``modelConfig``.
        """
        thought = next(self._numbers)
        self._unbegun.add(thought)

        async def think() -> Any:
            self._unbegun.discard(thought)
            return await self._think(self, messages)

        return think()

    def require_thoughts(self) -> None:
        """Require that each thinking has begun; workers call this when ``handle`` has returned.

        Raises:
            HandoffError: the result of ``think`` was not awaited.
        """
        if self._unbegun:
            raise HandoffError(
                "The agent's handle returned before ctx.think had begun.",
                suggestion="Write `await ctx.think(…)`, in an `async def handle`.",
            )

    def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> Any:
        """Call a tool; see :meth:`ToolCaller.call`."""
        return self.tools.call(tool, args, timeout=timeout)

    def call_many(self, calls: Iterable[Mapping[str, Any] | tuple[str, Any]]) -> Any:
        """Call many tools; see :meth:`ToolCaller.call_many`."""
        return self.tools.call_many(calls)
