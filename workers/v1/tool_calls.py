"""Tool calls on the older version's way: ``toolCall.pre``, ``toolCall.exec``, ``toolCall.post`` (002 §5).

``pre`` comes first, then one onion of ``exec`` and today's middlewares, then ``post`` (DESIGN §6).
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from goondan_tasks.calls import Run
from goondan_tasks.extension_api import Middleware, ToolCallContext
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.v1_api import ToolCallExecContext, ToolResult
from workers.cancellation import Cancellation
from workers.concurrency.beside_loop import RunOnThread, beside_loop, is_on_loop
from workers.concurrency.function_outcome import FunctionOutcome
from workers.handlers import is_async_handler
from workers.turns.mutators import Accept, Mutator, mutate
from workers.turns.pipeline import Core, Layer, Shape, compose
from workers.v1.pipeline_contexts import V1Contexts
from workers.v1.results import v1_result
from workers.v1.shown import Shown
from workers.v1.taken_results import result_taken


@dataclass
class V1CallContext(ToolCallContext):
    """What both versions' middlewares of one call share."""

    #: what those of the older version are given
    v1: ToolCallExecContext = field(kw_only=True)
    #: what it was made with
    shown: Shown = field(kw_only=True)
    #: the result that came last out of what is further inside
    last: ToolCallResult | None = field(default=None, kw_only=True)


def exec_middleware(function: Callable[[Any, Any], Any]) -> Middleware:
    """Return ``function(ctx, next)`` as a layer of the onion; what it returns is a ToolResult, or JSON."""

    def call(context: V1CallContext) -> Any:
        own = _own(context)
        return function(own, lambda given=None: Ahead(partial(_proceed, context, own, given)))

    async def call_async(context: V1CallContext) -> Any:
        own = _own(context)
        return await function(own, partial(_proceed, context, own))

    return call_async if is_async_handler(function) else call


class Ahead:
    """What ``next(ctx)`` returns to a plain function, which can pass it on and no more."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, ToolResult]:
        """Go on."""
        return self._begin().__await__()

    def __getattr__(self, name: str) -> Any:
        """Say how the result can be read.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"next(ctx).{name}: make it 'async def', and 'await next(ctx)', to read the result")


def _own(context: V1CallContext) -> ToolCallExecContext:
    own = context.v1
    own.tool_call.arguments, own.metadata = context.args, context.metadata
    return own


async def _proceed(context: V1CallContext, own: ToolCallExecContext, given: Any = None) -> ToolResult:
    """Go on to what is further inside: ``next(ctx)``."""
    sent = own if given is None else given
    if not isinstance(sent, ToolCallExecContext):
        raise TypeError(f"next() is called with ctx, not with {type(sent).__name__}")
    context.args = _arguments(sent, context)
    context.v1, context.metadata = sent, sent.metadata
    with ExitStack() as afterwards:
        afterwards.callback(setattr, context, "v1", own)
        if sent is not own:
            afterwards.callback(setattr, context, "metadata", own.metadata)
        context.last = await context.next()
    own.tool_call.arguments = context.args
    own.tool_result = sent.tool_result = v1_result(context.last)
    return own.tool_result


@dataclass(frozen=True, slots=True)
class WayMeans:
    """What a worker lends to one call's way."""

    #: once it is set nothing more is called
    cancellation: Cancellation
    on_thread: RunOnThread
    #: makes a result of what a layer returns
    shape: Shape
    #: makes a result of what was raised
    failed: Callable[[BaseException], ToolCallResult]


@dataclass(frozen=True, slots=True)
class CallWay:
    """How the functions around one tool call are gone through."""

    run: Run
    #: makes what functions of the older version are given
    contexts: V1Contexts
    pre: Sequence[Mutator]
    post: Sequence[Mutator]
    means: WayMeans

    def composed(self, layers: Sequence[Layer], core: Core[V1CallContext]) -> Core[ToolCallContext]:
        """Wrap ``core`` in ``layers`` and stand the chains before and behind them.

        A function of these that fails ends the call with a MiddlewareError that names it.
        """
        return partial(self._go, layers, core)

    async def _go(
        self, layers: Sequence[Layer], core: Core[V1CallContext], context: ToolCallContext
    ) -> ToolCallResult:
        look, on_thread = partial(self.contexts.shown, self.run.call), self.means.on_thread
        shown = await beside_loop(look, on_thread) if is_on_loop() else look()
        v1 = self.contexts.of_call(self.run.call, shown)
        v1.metadata = context.metadata
        call = V1CallContext(**{**vars(context), "args": v1.tool_call.arguments}, v1=v1, shown=shown)
        call.v1 = await self._mutate(self.pre, v1, partial(_accept_arguments, call))
        call.metadata = call.v1.metadata
        onion = compose(layers, core, on_thread=on_thread, shape=partial(self._shaped, call))
        call.last = await self._through(onion, call)
        call.v1.tool_result, call.v1.metadata = v1_result(call.last), call.metadata
        await self._mutate(self.post, call.v1, partial(self._accept_result, call))
        return call.last

    async def _mutate(
        self, mutators: Sequence[Mutator], v1: ToolCallExecContext, accept: Accept
    ) -> ToolCallExecContext:
        means = self.means
        return await mutate(
            mutators, v1, accept=accept, cancellation=means.cancellation, on_thread=means.on_thread
        )

    async def _through(self, onion: Core[V1CallContext], call: V1CallContext) -> ToolCallResult:
        """Return what comes of the onion; a failure is a result, too, and ``post`` sees it."""
        outcome = FunctionOutcome[ToolCallResult]()
        with outcome:
            outcome.note(await onion(call))
        if isinstance(outcome.error, Exception | SystemExit) and not self.means.cancellation.is_set():
            return self.means.failed(outcome.error)
        return outcome.get()

    def _shaped(self, call: V1CallContext, answer: Any) -> ToolCallResult:
        if isinstance(answer, ToolResult):
            answer = result_taken(answer, call.last, self.run)
        shaped: ToolCallResult = self.means.shape(answer)
        return shaped

    def _accept_result(self, call: V1CallContext, v1: ToolCallExecContext, _: Mutator) -> None:
        if not isinstance(v1.tool_result, ToolResult):
            raise ValueError(f"it left no ToolResult in ctx.tool_result but {v1.tool_result!r:.200}")
        call.last = self._shaped(call, v1.tool_result)


def _accept_arguments(call: V1CallContext, v1: ToolCallExecContext, _: Mutator) -> None:
    call.args = _arguments(v1, call)


def _arguments(v1: ToolCallExecContext, call: V1CallContext) -> Any:
    """Return the arguments of a call that is still the one that the Step's catalog admits."""
    if (v1.tool_call.id, v1.tool_call.name) != (call.tool_call_id, call.tool_name):
        raise ValueError("a call keeps its id and name, by which it was admitted: change its arguments only")
    return v1.tool_call.arguments
