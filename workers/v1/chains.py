"""The functions of older extensions around Turns, Steps and tool calls (002 §5).

Mutators change a context one after another. A tool call passes those of ``toolCall.pre``, then one onion of
``toolCall.exec`` functions and current middlewares, then those of ``toolCall.post`` (DESIGN §6). In a Step,
``step.pre``, ``config``, ``tools`` and ``blocks`` prepare catalog and blocks for the current middlewares, and
``step.post`` follows them (002 §9.3). In a producer's Step, all of this happens before the model is called.
"""

import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from goondan_tasks.authoring.extension_api import (
    Middleware,
    Point,
    StepContext,
    StepResult,
    ToolCallContext,
    TurnContext,
)
from goondan_tasks.authoring.v1_api import StepPipelineContext, ToolCallExecContext, ToolResult, V1CatalogItem
from goondan_tasks.authoring.v1_api import ToolCall as V1Call
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import MiddlewareError
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.wording import hint
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import RunOnThread, beside_loop, is_on_loop, move_to_loop
from workers.concurrency.threads import on_new_thread
from workers.handlers import is_async_handler
from workers.outcome import awaited_outcome
from workers.turns.pipeline import (
    AroundStep,
    Core,
    Layer,
    MiddlewareServices,
    Ranks,
    blame,
    compose,
    function_name,
    require_function,
)
from workers.v1.conversions import Shown, current_item, current_result, v1_item, v1_result

if TYPE_CHECKING:  # views imports Steps, which imports this module
    from workers.v1.views import Views

T = TypeVar("T")
Context = TypeVar("Context")

#: the points before a Step opens, in order
BEFORE_STEP = ("step.pre", "step.config", "step.tools", "step.blocks")
MUTATOR_POINTS = ("turn.pre", "turn.post", *BEFORE_STEP, "step.post", "toolCall.pre", "toolCall.post")
#: the only point that functions wrap
EXEC = "toolCall.exec"

_MODEL_CALL = (
    "The producer calls the agent's model, not a worker: change the model's input in 'step.tools' and "
    "'step.blocks', and the rest in the producer."
)
_WORKSPACE = "No repository is checked out for an instance; a tool's directory is ctx.workdir."
#: points of the documents that do not exist here, and the reason (002 §5.1)
_UNSUPPORTED = {
    "step.llmCall": _MODEL_CALL,
    "step.llmInput": _MODEL_CALL,
    "step.llmError": _MODEL_CALL,
    "workspace.repoAvailable": _WORKSPACE,
    "workspace.worktreeMounted": _WORKSPACE,
}


def require_point(point: str, known: Sequence[str]) -> None:
    """Require that a point is one of ``known``.

    Raises:
        ValueError: it is not; the message says what to use instead.
    """
    if point in known:
        return
    method = "wrap" if point == EXEC else "mutate" if point in MUTATOR_POINTS else None
    instead = f"Use api.pipelines.{method}({point!r}, …)." if method else _UNSUPPORTED.get(str(point))
    advice = instead or hint(str(point), (*MUTATOR_POINTS, EXEC))
    raise ValueError(f"{point!r} is not a point for this. {advice}")


@dataclass(frozen=True, slots=True)
class Mutator(Layer):
    """A function of a context, and its extension."""

    extension: str


#: checks or adopts the context that a mutator has returned; may raise
Accept = Callable[[Any, Mutator], None]


def _accept_any(context: Any, mutator: Mutator) -> None:
    pass


async def mutate(
    mutators: Sequence[Mutator],
    context: Context,
    *,
    accept: Accept = _accept_any,
    cancellation: Cancellation | None = None,
    on_thread: RunOnThread = on_new_thread,
) -> Context:
    """Pass ``context`` through ``mutators`` and return the result.

    A mutator that returns nothing passes on the context it was given. An exception ends the chain. Once
    ``cancellation`` is set, no further mutator is called.

    On a thread, the chain moves to the event loop at the first ``async`` mutator. From there, plain ones,
    which may block, are called with ``on_thread``.

    Raises:
        MiddlewareError: a mutator failed, or returned no such context; the message names it.
        GoondanError: a mutator raised it, or the run is cancelled.
    """
    for mutator in mutators:
        if cancellation is not None:
            cancellation.require_wanted()
        with OnError(partial(blame, mutator.name)):
            value = await _called(mutator, context, on_thread)
            if value is not None and not isinstance(value, type(context)):
                raise MiddlewareError(
                    f"Middleware {mutator.name} returned no ctx, as a mutator does, but {value!r:.200}."
                )
            context = context if value is None else value
            accept(context, mutator)
    return context


async def _called(mutator: Mutator, context: Any, on_thread: RunOnThread) -> Any:
    if is_on_loop() and not mutator.is_async:
        value = await beside_loop(partial(mutator.middleware, context), on_thread)
    else:
        value = mutator.middleware(context)
    while inspect.isawaitable(value):
        await move_to_loop()
        value = await value
    return value


async def _beside_loop(function: Callable[[], T], on_thread: RunOnThread = on_new_thread) -> T:
    """Call a function that may block without blocking the event loop."""
    return await beside_loop(function, on_thread) if is_on_loop() else function()


@dataclass
class V1CallContext(ToolCallContext):
    """The context that middlewares of both versions share for one call."""

    #: the context of the older functions
    v1: ToolCallExecContext = field(kw_only=True)
    #: the Turn, Step and catalog of ``v1``
    shown: Shown = field(kw_only=True)
    #: the latest result from further inside
    last: ToolCallResult | None = field(default=None, kw_only=True)

    def synced(self) -> ToolCallExecContext:
        """Return the older context with the current arguments and metadata."""
        self.v1.tool_call.arguments, self.v1.metadata = self.args, self.metadata
        return self.v1

    def accept_arguments(self, left: ToolCallExecContext, _: Mutator | None = None) -> None:
        """Adopt the arguments of a context that an older function has returned.

        Raises:
            ValueError: its call has another id or name than the one that was admitted.
        """
        if (left.tool_call.id, left.tool_call.name) != (self.tool_call_id, self.tool_name):
            raise ValueError(
                "a call keeps its id and name, by which it was admitted: change its arguments only"
            )
        self.args = left.tool_call.arguments


def exec_middleware(function: Callable[[Any, Any], Any]) -> Middleware:
    """Return ``function(ctx, next)`` as a layer of the onion; it returns a ToolResult, or JSON."""

    def call(context: V1CallContext) -> Any:
        own = context.synced()
        return function(own, lambda given=None: _PendingResult(partial(_proceed, context, own, given)))

    async def call_async(context: V1CallContext) -> Any:
        own = context.synced()
        return await function(own, partial(_proceed, context, own))

    return call_async if is_async_handler(function) else call


class _PendingResult:
    """The result of ``next(ctx)`` in a plain function, which can only return it."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, ToolResult]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, ToolResult]:
        return self._begin().__await__()

    def __getattr__(self, name: str) -> Any:
        raise TypeError(f"next(ctx).{name}: make it 'async def', and 'await next(ctx)', to read the result")


async def _proceed(context: V1CallContext, own: ToolCallExecContext, given: Any = None) -> ToolResult:
    """Run the layers further inside: ``next(ctx)``."""
    sent = own if given is None else given
    if not isinstance(sent, ToolCallExecContext):
        raise TypeError(f"next() is called with ctx, not with {type(sent).__name__}")
    context.accept_arguments(sent)
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
class CallWay:
    """The functions around one tool call."""

    run: Run
    contexts: "Views"
    pre: Sequence[Mutator]
    post: Sequence[Mutator]
    services: MiddlewareServices

    def composed(self, layers: Sequence[Layer], core: Core[Any]) -> Core[ToolCallContext]:
        """Wrap ``core`` in ``layers``, with the chains before and after them; it gets a V1CallContext.

        If a function of a chain fails, the call ends with a MiddlewareError that names it.
        """
        run, cancellation, on_thread = self.run, self.services.cancellation, self.services.on_thread
        through = partial(mutate, cancellation=cancellation, on_thread=on_thread)

        async def go(context: ToolCallContext) -> ToolCallResult:
            shown = await _beside_loop(partial(self.contexts.shown, run.call), on_thread)
            v1 = self.contexts.of_call(run.call, shown)
            v1.metadata = context.metadata
            own = {one.name: getattr(context, one.name) for one in fields(ToolCallContext)}
            call = V1CallContext(**{**own, "args": v1.tool_call.arguments}, v1=v1, shown=shown)
            call.v1 = await through(self.pre, v1, accept=call.accept_arguments)
            call.metadata = call.v1.metadata
            shape = partial(self._shaped, call)
            call.last = await self._through(compose(layers, core, on_thread=on_thread, shape=shape), call)
            call.v1.tool_result, call.v1.metadata = v1_result(call.last), call.metadata
            await through(self.post, call.v1, accept=partial(self._accept_result, call))
            return call.last

        return go

    async def _through(self, onion: Core[V1CallContext], call: V1CallContext) -> ToolCallResult:
        """Return the onion's result; an exception becomes a result, too, so that ``post`` sees it."""
        outcome = await awaited_outcome(onion(call))
        if isinstance(outcome.error, Exception | SystemExit) and not self.services.cancellation.is_set():
            return self.services.failed(outcome.error)
        result: ToolCallResult = outcome.get()
        return result

    def _accept_result(self, call: V1CallContext, left: ToolCallExecContext, _: Mutator) -> None:
        if not isinstance(left.tool_result, ToolResult):
            raise ValueError(f"ctx.tool_result is not a ToolResult but {left.tool_result!r:.200}")
        call.last = self._shaped(call, left.tool_result)

    def _shaped(self, call: V1CallContext, answer: Any) -> ToolCallResult:
        if isinstance(answer, ToolResult):
            answer = current_result(answer, call.last, self.run)
        shaped: ToolCallResult = self.services.shape(answer)
        return shaped


def around_step(
    make: Callable[[], StepPipelineContext],
    show: Callable[[Any], V1CatalogItem],
    before: Sequence[Mutator],
    after: Sequence[Mutator],
) -> AroundStep:
    """Return a wrapper that runs mutators before and after the chain of a Step.

    ``make`` makes the older context without catalog and blocks, and may block; ``show`` converts a catalog
    item to the older form. If a mutator fails, the Step does not open, or ends, with a MiddlewareError that
    names it.
    """

    async def go(chain: Core[StepContext], context: StepContext) -> Any:
        if any(mutator.is_async for mutator in (*before, *after)):
            await move_to_loop()  # now, because an open Step cannot change its thread
        v1 = await _beside_loop(make)
        offered = [(show(item), item) for item in context.tool_catalog]
        v1.tool_catalog = [shown for shown, _ in offered]
        v1.blocks, v1.metadata = context.blocks, context.metadata
        known = {id(shown): item for shown, item in offered}
        v1 = await mutate(before, v1, accept=partial(_accept_items, known))
        context.tool_catalog = [known.get(id(shown)) or current_item(shown) for shown in v1.tool_catalog]
        context.blocks, context.metadata = v1.blocks, v1.metadata
        result = await chain(context)
        if after:
            v1.tool_catalog = [show(item) for item in context.tool_catalog]
            v1.blocks, v1.metadata = context.blocks, context.metadata
            await mutate(after, _ended(v1, result))
        return result

    return lambda chain: partial(go, chain)


def _accept_items(known: Collection[int], v1: StepPipelineContext, mutator: Mutator) -> None:
    """Convert the entries that a mutator added to the catalog to items, for the next mutator."""
    v1.tool_catalog = [item if id(item) in known else _item(item, mutator) for item in v1.tool_catalog]
    v1.blocks = list(v1.blocks)


def _item(given: Any, mutator: Mutator) -> V1CatalogItem:
    try:
        return v1_item(given, mutator.extension)
    except (TypeError, ValueError) as error:
        raise MiddlewareError(
            f"Middleware {mutator.name} put something into the catalog that is not a tool: "
            f"{given!r:.200}: {error}."
        ) from error


def _ended(v1: StepPipelineContext, result: Any) -> StepPipelineContext:
    """Return the context of ``step.post``, with the calls of the Step and their results."""
    if not isinstance(result, StepResult):
        return v1
    calls = [V1Call(call["id"], call["name"], call["args"]) for call in result.tool_calls]
    results = {one.tool_call_id: v1_result(one) for one in result.tool_results}
    return replace(v1, step=replace(v1.step, pending_tool_calls=calls), tool_results=results)


@dataclass(frozen=True, slots=True)
class TurnWay:
    """The functions around the Turn of an agent's entry."""

    call: ToolCall
    contexts: "Views"
    pre: Sequence[Mutator]
    post: Sequence[Mutator]

    def composed(
        self, turn: Core[TurnContext], cancellation: Cancellation, on_thread: RunOnThread
    ) -> Core[TurnContext]:
        """Run the functions before and after ``turn``; the answer is the ``result`` that they leave.

        If one fails, the Turn ends with a MiddlewareError that names it.
        """
        through = partial(mutate, cancellation=cancellation, on_thread=on_thread)

        async def go(context: TurnContext) -> Any:
            v1 = await _beside_loop(partial(self.contexts.of_turn, self.call, context.event), on_thread)
            begun, v1.metadata = v1.turn, context.metadata
            v1 = await through(self.pre, v1)
            context.metadata = v1.metadata
            v1.result = await turn(context)
            if self.post:
                read = partial(self.contexts.ended_turn, self.call, context.event, begun)
                v1.turn, v1.metadata = await _beside_loop(read, on_thread), context.metadata
            return (await through(self.post, v1)).result

        return go


class V1Chains:
    """The functions of every agent's older extensions; those that wrap calls are among the ``layers``."""

    def __init__(self, layers: Ranks[Point, Layer]) -> None:
        #: makes their contexts; set by :func:`workers.revisions.factory.make_executor`
        self.made_by: Views | None = None
        self._layers = layers
        self._ranks: Ranks[str, Mutator] = Ranks()
        #: the agents with older functions around their tool calls, ``toolCall.exec`` included
        self.with_calls: frozenset[str] = frozenset()

    def mutators(self, agent: str, *points: str) -> tuple[Mutator, ...]:
        """Return an agent's mutators at these points, in calling order."""
        return tuple(mutator for point in points for mutator in self._ranks.of(agent, point))

    def mutate(
        self,
        agent: str,
        point: str,
        function: Callable[[Any], Any],
        *,
        extension: str,
        priority: int = 0,
        name: str | None = None,
    ) -> None:
        """Register a mutator of ``extension`` at ``point``; lower priorities come first.

        Raises:
            ValueError: there is no such point.
            TypeError: it is not a function of ``(ctx)``, or its priority is not an integer.
        """
        require_point(point, MUTATOR_POINTS)
        require_function(function, 1, "(ctx), and returns it")
        mutator = Mutator(function_name(extension, function, name), function, extension)
        self._ranks.add(agent, point, mutator, priority)
        if point in ("toolCall.pre", "toolCall.post"):
            self.with_calls |= {agent}
        self._layers.version += 1  # what happens around calls and Turns has changed

    def wrap(
        self,
        agent: str,
        point: str,
        function: Callable[[Any, Any], Any],
        *,
        extension: str,
        priority: int = 0,
        name: str | None = None,
    ) -> None:
        """Put a function of ``extension`` around ``toolCall.exec``; lower priorities are further out.

        Raises:
            ValueError: it is another point.
            TypeError: it is not a function of ``(ctx, next)``, or its priority is not an integer.
        """
        require_point(point, (EXEC,))
        require_function(function, 2, "(ctx, next); next(ctx) runs the next layer")
        layer = Layer(function_name(extension, function, name), exec_middleware(function))
        self.with_calls |= {agent}
        self._layers.add(agent, "toolCall", layer, priority)

    def clear(self, agent: str) -> None:
        for point in MUTATOR_POINTS:
            self._ranks.clear(agent, point)
        self.with_calls -= {agent}

    def around_call(self, run: Run, services: MiddlewareServices) -> CallWay | None:
        """Return the functions around a tool call, if any."""
        agent = run.call.agent_name
        if agent not in self.with_calls:
            return None
        pre, post = self.mutators(agent, "toolCall.pre"), self.mutators(agent, "toolCall.post")
        return CallWay(run, self.contexts(), pre, post, services)

    def around_step(self, call: ToolCall, step: StepContext) -> AroundStep | None:
        """Return the wrapper of a Step that ``call`` opens, if there are functions around it."""
        agent = call.agent_name
        before, after = self.mutators(agent, *BEFORE_STEP), self.mutators(agent, "step.post")
        if not (before or after):
            return None
        contexts = self.contexts()
        make = partial(contexts.of_step, call, step_id=step.step_id, index=step.step_index)
        return around_step(make, partial(contexts.item, agent), before, after)

    def around_turn(self, call: ToolCall) -> TurnWay | None:
        """Return the functions around the Turn in which an agent handles ``call``, if any."""
        pre, post = self.mutators(call.agent_name, "turn.pre"), self.mutators(call.agent_name, "turn.post")
        return TurnWay(call, self.contexts(), pre, post) if pre or post else None

    def contexts(self) -> "Views":
        """Return the maker of contexts.

        Raises:
            RuntimeError: the executor has not been made yet.
        """
        if self.made_by is None:
            raise RuntimeError("the worker has not been put together yet")
        return self.made_by
