"""The executor takes a call through five steps to its one result. It never raises.

1. guard: is the tool in the Step's catalog (003 §7)? It fails closed, before any middleware.
2. pipeline: the ``toolCall`` middlewares, an onion around the other steps (003 §6).
3. arguments: checked against the tool's JSON Schema, after middlewares may have changed them.
4. handler: ``handler(ctx, input)``, in the instance's workdir.
5. outcome: the value or the exception becomes the ToolCallResult (003 §8); a large output becomes a file.

Calls that have a plan take a shorter path to the same result (:mod:`workers.plans` says which have none).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

import structlog

from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.calls import Run, with_meta
from goondan_tasks.contract.errors import (
    ToolInputValidationError,
)
from goondan_tasks.contract.events import handling_agent, is_event
from goondan_tasks.contract.failure import (
    DEFAULT_MESSAGE_LIMIT,
    with_error_in_output,
    with_error_in_output_by_name,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import SYSTEM_TOOL
from workers.call_onion import call_context
from workers.cancellation import Cancellation, Watch, timed_out, way_timed_out
from workers.concurrency.event_loop import (
    beside_loop,
    is_on_loop,
    move_to_loop,
)
from workers.concurrency.slots import Wait
from workers.contexts import ContextFactory, RunServices
from workers.endings import Endings
from workers.extensions.events import (
    EventListeners,
    running,
    tell_called,
    tell_completed,
)
from workers.extensions.pipelines import AgentPipelines
from workers.forks import end_fork
from workers.outcome import awaited_outcome
from workers.plans import Plans
from workers.processes.isolation import IsolatedTool
from workers.thinking.model_request import ModelAnswer
from workers.tools.dynamic_tools import turn_of
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.pipeline import Layer, MiddlewareServices
from workers.turns.turns import Turns

logger = structlog.get_logger(__name__)

T = TypeVar("T")

#: how long an async handler that is cancelled at its limit may take to end before the call ends without it
PATIENCE_SECONDS = 1.0


class StartMark(Protocol):
    """Marks the run as started just before code around it begins (``Delivery.start``)."""

    def __call__(self, *, has_begun: bool = False) -> float:
        """Return until when the mark is fresh, by ``time.monotonic()``."""


@dataclass(slots=True)
class _Attempt:
    """A run and how far it has come: whenever it fails, its result is made from this."""

    run: Run
    mark_started: StartMark
    watch: Watch
    services: RunServices
    message_limit: int = DEFAULT_MESSAGE_LIMIT
    limit_seconds: float = 0.0
    #: ``time.monotonic()`` until which the mark "started" lets code begin; 0 before there is one
    fresh_until: float = 0.0
    #: when its handler began
    started_at: float | None = None
    #: whether blocking code runs for it on a thread, which must not be abandoned
    is_beside_loop: bool = False
    is_interruptible: bool = False
    #: the timer of an async handler while it is awaited
    timer: asyncio.Timeout | None = None
    #: whether the async handler needs no slot
    only_waits: bool = False
    #: whether it is a tool call, which extensions are told of
    is_told: bool = False
    #: whether the output of an error describes it, too, as in the older version
    repeats_errors: bool = False
    #: the context of the middlewares around the call
    around: ToolCallContext | None = None
    #: the context that the handler was called with
    context: Any = None

    @property
    def is_past_limit(self) -> bool:
        """Whether the async handler was cancelled and cleans up; another cancel would interrupt that."""
        return self.timer is not None and self.timer.expired()

    def mark(self) -> None:
        """Mark the run as started: its middlewares may have effects, too (DESIGN "Delivery" rule 4).

        Before the handler the mark is set again if it is old: middlewares may have taken long, and the
        process may have been frozen.
        """
        if monotonic() >= self.fresh_until:
            self.fresh_until = self.mark_started(has_begun=bool(self.fresh_until))

    async def move_to_loop(self) -> None:
        """Continue on the event loop, in a task that is cancelled with the call."""
        await move_to_loop()
        if not self.is_interruptible:
            self.is_interruptible = True
            self._interrupt_with(self.services.cancellation)

    def _interrupt_with(self, cancellation: Cancellation) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def interrupt() -> None:
            if task is not None and not (self.is_beside_loop or self.is_past_limit):
                task.cancel()

        cancellation.on_cancel(lambda: loop.call_soon_threadsafe(interrupt))


@dataclass(eq=False)
class Executor:
    """Runs calls with one registry of tools."""

    registry: Registry
    contexts: ContextFactory
    guard: CatalogGuard
    pipelines: AgentPipelines
    events: EventListeners
    turns: Turns
    endings: Endings
    #: how plain calls are run
    plans: Plans

    async def execute(
        self, run: Run, mark_started: StartMark, *, watch: Watch, services: RunServices
    ) -> ToolCallResult:
        """Run the call; whatever happens becomes its result.

        An async handler is cancelled at its limit and with its call. A blocking one cannot be cancelled, and
        an async one may not end then: ``watch`` enforces the limit of both, and the call is answered while
        the handler still runs.
        """
        attempt = _Attempt(run, mark_started, watch, services)
        outcome = await awaited_outcome(self._through_steps(attempt))
        if outcome.error is None:
            result = outcome.get()
        else:
            cause = services.cancellation.error or outcome.error
            result = self.endings.of_error(run, cause, attempt.message_limit, attempt.started_at)
        if result.status == "error":
            mirrored = with_error_in_output if attempt.repeats_errors else with_error_in_output_by_name
            result = mirrored(result)
        turn = services.turn
        if turn.usage:
            reason = turn.finish_reason or (None if result.error is None else "error")
            result = with_meta(result, usage=dict(turn.usage), finish_reason=reason)
        self.contexts.let_go(attempt.context)
        services.reporter.flush()
        if attempt.is_told:
            tell_completed(self.events, run.call, result)
        return result

    async def _through_steps(self, attempt: _Attempt) -> ToolCallResult:
        """Take the call through its five steps; anything may be raised."""
        run, services = attempt.run, attempt.services
        running.set(run)
        bound = self.guard.admit(run.call, attempt.watch)
        attempt.message_limit = bound.tool.spec.error_message_limit
        attempt.is_told = bound.tool.name != SYSTEM_TOOL
        attempt.repeats_errors = bound.is_v1
        if attempt.is_told:
            tell_called(self.events, run.call)
            result = await self._through_middlewares(attempt, bound)
            untold = self.endings.untold(run)
            if untold:
                await _may_block(attempt, partial(self.endings.tell, run, untold))
        elif is_event(run.call):
            handle = partial(self._handle, attempt, run.call.args)
            within = partial(self._limited, attempt, bound)
            services.turn.conversation = await _may_block(attempt, partial(self.contexts.conversation, run))
            await _may_block(attempt, attempt.mark)
            answer = await self.turns.around(
                run,
                handle,
                within=within,
                cancellation=services.cancellation,
                on_thread=services.on_thread,
                state=services.turn,
            )
            if services.turn.conversation is not None:  # middlewares may have changed it since
                await _may_block(attempt, services.turn.conversation.end)
            result = run.ok(answer, attempt.started_at)
        else:
            answer = await self._handle(attempt, run.call.args)
            if isinstance(answer, ModelAnswer):
                services.turn.usage.update(answer.usage)
                services.turn.finish_reason = answer.finish_reason
                answer = answer.to_wire()
            result = run.ok(answer, attempt.started_at)
        return await self.endings.storable(run, result, bound)

    async def _through_middlewares(self, attempt: _Attempt, bound: BoundTool) -> ToolCallResult:
        """Run the handler inside the agent's middlewares."""
        run, services = attempt.run, attempt.services

        async def core(context: ToolCallContext) -> ToolCallResult:
            attempt.around = context
            return self.endings.of_value(run, await self._handle(attempt, context.args), attempt.started_at)

        def shape(answer: Any) -> ToolCallResult:
            return self.endings.of_middleware(run, answer, attempt.message_limit, attempt.started_at)

        def failed(error: BaseException) -> ToolCallResult:
            return self.endings.of_error(run, error, attempt.message_limit, attempt.started_at)

        of_run = MiddlewareServices(services.cancellation, services.on_thread, shape, failed)
        wrapped = self.pipelines.around_call(run, of_run, core)
        if wrapped is None:
            return self.endings.of_value(run, await self._handle(attempt, run.call.args), attempt.started_at)
        await _may_block(attempt, attempt.mark)
        call, functions = wrapped
        result: ToolCallResult = await self._limited(
            attempt, bound, functions, partial(call, call_context(run))
        )
        return result

    async def _limited(
        self, attempt: _Attempt, bound: BoundTool, layers: Sequence[Layer], call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Go through middlewares, which may take as long again as the handler; a cancel ends them."""
        limit = 2 * self.contexts.limit_seconds(attempt.run, bound)
        call_off = attempt.watch(limit, way_timed_out)
        try:
            if any(layer.is_async for layer in layers):
                await attempt.move_to_loop()
            return await call()
        finally:
            call_off()

    async def _handle(self, attempt: _Attempt, arguments: Any) -> Any:
        """Check the arguments and run the handler; on the loop, blocking parts run on another thread."""
        try:
            value = await _may_block(attempt, partial(self._begin, attempt, arguments))
            return await _awaited(value, attempt) if inspect.isawaitable(value) else value
        finally:
            end_fork()

    def _begin(self, attempt: _Attempt, arguments: Any) -> Any:
        """Run a blocking handler to its end, or return the awaitable of an async one."""
        run, services = attempt.run, attempt.services
        services.cancellation.require_wanted()  # a middleware may have taken too long
        tool, names = self._tool(attempt), (run.call.agent_name, run.call.tool_name)
        faults = tool.arguments.faults(arguments)
        if faults:
            raise ToolInputValidationError("; ".join(faults))
        held = self.endings.suspension.hold(run, tool.bound)
        if held is not None:
            return held
        limit = attempt.limit_seconds = self.contexts.limit_seconds(run, tool.bound)
        attempt.mark()
        attempt.started_at = run.clock()
        services.on_begin()
        # the limit counts from here
        attempt.context = context = self.contexts.make(
            run, tool, services, limit_seconds=limit, around=attempt.around
        )
        if isinstance(tool.handler, IsolatedTool):
            handle = partial(tool.handler.run, limit_seconds=limit, cancellation=services.cancellation)
            return self.plans.detector(*names).timed(partial(handle, context, arguments))
        if tool.is_async:
            attempt.only_waits = tool.only_waits
            return tool.handler(context, arguments)
        call_off = attempt.watch(limit)
        try:
            return self.plans.detector(*names).timed(partial(tool.handler, context, arguments))
        finally:
            call_off()

    def _tool(self, attempt: _Attempt) -> RegisteredTool:
        call, cancellation = attempt.run.call, attempt.services.cancellation
        agent, name, turn = call.agent_name, call.tool_name, turn_of(call)
        limit = partial(self.contexts.limit_seconds, attempt.run)
        return self.registry.ready(agent, name, turn) or self.registry.tool(
            agent, name, turn=turn, limit=limit, cancellation=cancellation
        )


async def _may_block(attempt: _Attempt, function: Callable[[], T]) -> T:
    """Call what may block; on another thread if the run is on the event loop."""
    if not is_on_loop():
        return function()
    attempt.is_beside_loop = True
    try:
        return await beside_loop(function, attempt.services.on_thread)
    finally:
        attempt.is_beside_loop = False


def _require_wanted(value: Any, cancellation: Cancellation) -> None:
    """Raise the cancellation's error instead of awaiting a handler, if the task was not cancelled for it."""
    if cancellation.error is not None and inspect.iscoroutine(value):
        value.close()
        raise cancellation.error


async def _awaited(value: Awaitable[Any], attempt: _Attempt) -> Any:
    limit = attempt.limit_seconds
    # a handler may ignore that it is cancelled, or block the event loop
    call_off = attempt.watch(limit, patience=PATIENCE_SECONDS)
    try:
        await attempt.move_to_loop()
        _require_wanted(value, attempt.services.cancellation)
        async with asyncio.timeout(limit) as timer:
            attempt.timer = timer
            if not attempt.only_waits:
                return await value
            async with attempt.services.only_waiting().without_slot(Wait.HANDLER, is_async=True):
                return await value
    except TimeoutError as error:
        if timer.expired():
            raise timed_out(limit, agent=handling_agent(attempt.run.call)) from error
        raise
    finally:
        attempt.timer = None
        call_off()
