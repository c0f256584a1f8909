"""The plan of a tool's calls: what they have in common, worked out once; and whether its handler is slow."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, thread_time
from typing import Any, Protocol, TypeVar

from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from workers.concurrency.event_loop import RunOnThread
from workers.concurrency.threads import SHORT_SECONDS
from workers.forks import end_fork
from workers.outcome import FunctionOutcome
from workers.tools.registered_tool import RegisteredTool
from workers.turns.pipeline import Layer

T = TypeVar("T")

#: a handler that is off the processor for longer than this, in seconds, may be waiting for something
IDLE_SECONDS = 0.001

#: this many such runs in a row are no coincidence; a single one may be due to a busy machine
SURE = 3


class SlowToolDetector:
    """Learns from a tool's runs whether its blocking handler is slow: idle for that long, in seconds."""

    __slots__ = ("_most_idle", "_suspicion", "has_awaited")

    def __init__(self, most_idle: float = IDLE_SECONDS) -> None:
        #: whether plain code of a run, its handler or a middleware, has returned something to await
        self.has_awaited = False
        self._suspicion = 0
        self._most_idle = most_idle

    @property
    def is_slow(self) -> bool:
        """Whether its calls would keep short ones waiting; then each gets a thread of its own."""
        return self._suspicion >= SURE

    def note_slow(self) -> None:
        """Record that a handler has taken long."""
        self._suspicion = SURE

    def timed(self, handler: Callable[[], T]) -> T:
        """Run a handler and learn from the time that it takes."""
        begun, busy = monotonic(), thread_time()
        try:
            return handler()
        finally:
            wall = monotonic() - begun
            self.learn(wall, wall - (thread_time() - busy))
            end_fork()

    def learn(self, wall: float, idle: float) -> None:
        """Record how many seconds a handler took, and how many of them it was idle.

        One long run is enough; short waits count only if there are several in a row.
        """
        if wall > SHORT_SECONDS:
            self._suspicion = SURE
        elif idle > self._most_idle:
            self._suspicion += 1
        elif self._suspicion:
            self._suspicion = 0


#: the versions of everything that extensions may put around calls
Stamp = tuple[object, ...]

#: runs a call's handler with its arguments: on this thread, on the event loop, or beside it
Handle = Callable[[JsonObject], Awaitable[Any]]


class Runner(Protocol):
    """Runs the calls of its plans: the :class:`workers.executor.Executor` of a revision of the bundle.

    Each ``job`` is a :class:`workers.job.Job`.
    """

    def run(
        self, job: Any, plan: "Plan", context: Any, mark_again: Callable[[Any], None]
    ) -> bytes | ToolCallResult:
        """Run a call on this thread; return its result, as JSON if nothing is special about it."""

    def run_on_loop(
        self, job: Any, plan: "Plan", handle: Handle, beside: RunOnThread, mark_again: Callable[[Any], None]
    ) -> Coroutine[Any, Any, Any]:
        """Run a call on the event loop; ``beside`` runs plain middlewares, which may block."""

    def plain_result(self, job: Any, plan: "Plan", outcome: FunctionOutcome[Any]) -> bytes | None:
        """Return the result of a call as JSON; ``None`` if making it may block."""

    def general_result(self, job: Any, plan: "Plan", outcome: FunctionOutcome[Any]) -> ToolCallResult:
        """Return the result of a call, whatever it has returned or raised; this may block."""

    def workdir(self, job: Any) -> Path:
        """Return the workdir of a call, made on first use; raises as ``InstanceWorkdirs.open``."""

    def wire(self, job: Any, *, limit_seconds: float) -> JsonObject:
        """Make the context of a call for a handler in another process; this may block."""

    def context(self, job: Any, services: Any) -> Any:
        """Make the whole context of a call; this may block. ``services`` are :class:`ContextServices`."""


@dataclass(eq=False, slots=True)
class Plan:
    """How the calls of an export are run, or the events of an agent."""

    tool: RegisteredTool
    handler: Callable[[Any, JsonObject], Any]
    limit_seconds: float
    detector: SlowToolDetector
    #: the plan is valid until extensions change one of these versions
    stamp: Stamp
    runner: Runner
    #: the middlewares around the handler, the outermost first
    layers: tuple[Layer, ...] = ()
    #: the older functions before and after these; ``None`` if no older extension is around the calls
    older: Sequence[Layer] | None = None
    #: whether the handler takes the job instead of a context, as that of a Step's opening does
    takes_job: bool = False
    #: whether the handler is that of an agent, in its Turn
    is_turn: bool = False
    #: whether extensions listen to the agent's tool calls
    is_heard: bool = False
    #: whether its calls wait for an approval before the handler begins
    asks: bool = False
    #: whether the handler runs in a process that ends at the time limit
    is_isolated: bool = False
    #: whether a run is marked as started before it begins, as some of its code is the bundle's
    needs_mark: bool = True
    #: whether anything is around the handler
    is_wrapped: bool = field(init=False)
    #: whether this may take as long again as the handler
    has_layers: bool = field(init=False)
    #: whether something around the handler sees its result; most middlewares of ours, and plain ones,
    #: return it unseen
    sees_result: bool = field(init=False)
    #: whether the handler is awaited on the event loop
    is_awaited: bool = field(init=False)
    #: whether calls begin on the event loop, which many may do at a time: for a middleware, or because their
    #: handler is awaited or runs in another process; also once plain code has returned something to await
    on_loop: bool = field(init=False)
    #: the arguments that are the idempotencyKey of its calls, if it declares one
    key_arguments: Sequence[str] = field(init=False)
    message_limit: int = field(init=False)
    has_retry: bool = field(init=False)
    #: whether nothing more follows from a handler's error than its result
    fails_plainly: bool = field(init=False)

    def __post_init__(self) -> None:
        bound = self.tool.bound
        self.message_limit = bound.tool.spec.error_message_limit
        self.has_retry = bound.export.retry is not None
        self.key_arguments = bound.export.idempotency_key or ()
        is_older = bound.is_v1 or "." in bound.name
        self.fails_plainly = not (is_older or self.has_retry or self.is_heard or self.is_turn)
        self.has_layers = bool(self.layers) or self.is_heard or self.older is not None
        self.is_wrapped = self.has_layers or self.is_turn
        self.sees_result = self.older is not None or any(layer.needs_loop for layer in self.layers)
        self.is_awaited = self.tool.is_async
        self.on_loop = (
            self.is_awaited
            or self.is_isolated
            or self.detector.has_awaited
            or any(layer.needs_loop for layer in self.layers)
            or any(one.is_async for one in self.older or ())
        )

    def note_awaited(self) -> None:
        """Begin the next calls on the event loop: plain code of a call has returned something to await.

        It still runs on a thread, since it may block, and may return a value the next time.
        """
        self.on_loop = self.detector.has_awaited = True
