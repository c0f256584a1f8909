"""Runs the calls of one revision of the bundle by their plans, each to its one result.

1. guard: is the tool in the Step's catalog (003 §7)? It fails closed, before any middleware.
2. pipeline: the ``toolCall`` middlewares, an onion around the other steps (003 §6); for an event, the Turn's.
3. arguments: checked against the tool's JSON Schema, after middlewares may have changed them.
4. handler: ``handler(ctx, input)``, in the instance's workdir.
5. outcome: the value or the exception becomes the ToolCallResult (003 §8); a large output becomes a file.

What a call does not need is not in its plan (:mod:`workers.plans`). A call is run on the thread that begins
it. If its handler or a middleware is async, or its handler runs in another process, it is run on the event
loop as a whole, and a blocking handler beside it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from broker_config import serializer
from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.calls import with_meta
from goondan_tasks.contract.errors import ToolError, ToolInputValidationError
from goondan_tasks.contract.failure import (
    DEFAULT_MESSAGE_LIMIT,
    with_error_in_output,
    with_error_in_output_by_name,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.names import SYSTEM_TOOL
from goondan_tasks.contract.output import may_be_pending
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.call_onion import HandlerValue, JobCallContext
from workers.cancellation import Watch
from workers.concurrency.event_loop import (
    EventLoopThread,
    RunOnThread,
    beside_loop,
    drive,
    is_on_loop,
    move_to_loop,
)
from workers.concurrency.threads import on_new_thread
from workers.contexts import ContextFactory
from workers.endings import Endings, log_raised
from workers.extensions.events import EventListeners, running, tell_called, tell_completed
from workers.extensions.pipelines import AgentPipelines
from workers.instances.workdirs import OpenWait
from workers.job import Job
from workers.outcome import FunctionOutcome, awaited_outcome, outcome_of
from workers.plain_context import ContextServices
from workers.plan import Handle, Plan
from workers.plans import Plans
from workers.results import result_of, shown_result
from workers.thinking.model_request import ModelAnswer
from workers.tools.registry import Registry
from workers.turns.pipeline import Core, MiddlewareServices, Shape, blocking, compose
from workers.turns.turns import around_turn

#: marks a call as started, for the first time or since its mark is old; may raise a GoondanError
Mark = Callable[[Job], None]


@dataclass(eq=False)
class Executor:
    """Runs calls with one registry of tools."""

    registry: Registry
    contexts: ContextFactory
    pipelines: AgentPipelines
    events: EventListeners
    endings: Endings
    event_loop: EventLoopThread
    #: how calls are run
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        self.plans = Plans(self.registry, self.contexts, self.pipelines, self.events, self.endings, self)

    # Before anything around a call begins.

    def prepare(self, job: Job, watch: Watch, mark: Mark) -> ToolCallResult | None:
        """Plan a call whatever that takes, and mark it as started; this may block.

        Return the result of a call that ends before that: it may not be called, its arguments are wrong, it
        waits for an approval, or it must not begin any more. ``watch`` limits the middlewares that register
        the tools of its Step.
        """
        running.set(job)
        ended = outcome_of(partial(self._prepare, job, watch, mark))
        return ended.get() if ended.error is None else self._refusal(job, ended.error)

    def _prepare(self, job: Job, watch: Watch, mark: Mark) -> ToolCallResult | None:
        plan = self.plans.prepared(job, watch)
        early = self.early_result(job, plan)
        if early is not None:
            return early
        if plan.needs_mark:
            mark(job)
        else:
            job.start_unmarked()
        return None

    def early_result(self, job: Job, plan: Plan) -> ToolCallResult | None:
        """Return the result of a call with invalid arguments, or of one that waits for an approval.

        ``None`` if its handler may begin, or if anything is around the call: that comes first, and
        middlewares may change the arguments.
        """
        if plan.is_wrapped:
            return None
        faults = plan.tool.arguments.faults(job.read()["args"])
        if faults:
            return self._refusal(job, ToolInputValidationError("; ".join(faults)))
        held = self.endings.suspension.hold(job.claim.run, plan.tool.bound) if plan.asks else None
        return None if held is None else self.endings.suspension.result(job.claim.run, held, None)

    def _refusal(self, job: Job, error: BaseException) -> ToolCallResult:
        """Return the result of a call that ends with an error before anything around it has begun."""
        return _mirrored(self._of_error(job, error), job.plan)

    def _of_error(self, job: Job, error: BaseException) -> ToolCallResult:
        """Return the result of a call that has raised an error, or that of its cancellation."""
        cause = error if job.cancellation is None else job.cancellation.error or error
        limit = DEFAULT_MESSAGE_LIMIT if job.plan is None else job.plan.message_limit
        of_error = partial(self.endings.of_error, job.claim.run)
        made = outcome_of(partial(of_error, cause, limit, job.started_at))
        if made.error is None:
            return made.get()
        return of_error(ToolError(f"{type(cause).__name__}, which cannot be shown"), limit, job.started_at)

    # What contexts are made of.

    def workdir(self, job: Job) -> Path:
        """Return the workdir of a call, made on first use; raises as ``InstanceWorkdirs.open``."""
        patience = OpenWait(job.seconds_left, job.cancellation)
        return self.contexts.workdirs.open(job.agent, job.read()["instanceKey"], patience)

    def wire(self, job: Job, *, limit_seconds: float) -> JsonObject:
        """Make the context of a call for a handler in another process; this may block."""
        return self.contexts.wire(job.read(), job.id, job.token, job.queued_at, limit_seconds=limit_seconds)

    def context(self, job: Job, services: ContextServices) -> Any:
        """Make the whole ToolContext or AgentContext of a call; this may block."""
        return self.contexts.make(job, services)

    # Running.

    def run(self, job: Job, plan: Plan, context: ToolContext, mark_again: Mark) -> bytes | ToolCallResult:
        """Run a call on this thread; return its result, as JSON if nothing is special about it."""
        running.set(job)
        called = partial(self._called, job, plan, context, mark_again)
        outcome = outcome_of(partial(plan.detector.timed, called))
        result = self.plain_result(job, plan, outcome)
        return self.general_result(job, plan, outcome) if result is None else result

    def _called(self, job: Job, plan: Plan, context: ToolContext, mark_again: Mark) -> Any:
        """Run the handler of a call, within what is around it, if anything is."""
        if not plan.is_wrapped:
            return plan.handler(job if plan.takes_job else context, job.read()["args"])

        async def handle(arguments: JsonObject) -> Any:
            here = partial(plan.handler, context, arguments)
            return await beside_loop(here, on_new_thread) if is_on_loop() else here()

        coroutine = self._wrapped(job, plan, handle, on_new_thread, mark_again)
        ended = drive(coroutine)
        if ended is not None:
            return ended[0]
        plan.note_awaited()
        return self.event_loop.submit(coroutine).result()

    async def run_on_loop(
        self, job: Job, plan: Plan, handle: Handle, beside: RunOnThread, mark_again: Mark
    ) -> Any:
        """Run a call on the event loop; ``beside`` runs plain middlewares, which may block."""
        running.set(job)
        if plan.is_wrapped:
            return await self._wrapped(job, plan, handle, beside, mark_again)
        value = await handle(job.read()["args"])
        return await _awaited(job, value) if _is_unfinished(plan, value) else value

    async def _wrapped(
        self, job: Job, plan: Plan, handle: Handle, beside: RunOnThread, mark_again: Mark
    ) -> Any:
        """Return the handler's value, or the result that what is around it has given instead."""
        begin = partial(self._begin, job, plan, handle, beside, mark_again)
        return await (self._turn if plan.is_turn else self._onion)(job, plan, begin, beside)

    async def _begin(
        self,
        job: Job,
        plan: Plan,
        handle: Handle,
        beside: RunOnThread,
        mark_again: Mark,
        arguments: JsonObject,
    ) -> Any:
        """Run the handler of a call that something is around; its arguments are valid."""
        if not job.is_fresh:  # middlewares have taken long, and the process may have been frozen
            again = partial(mark_again, job)
            await beside_loop(again, beside) if is_on_loop() else again()
        job.begin_handler()
        try:
            value = await handle(arguments)
            if _is_unfinished(plan, value):
                await move_to_loop()
                value = await _awaited(job, value)
            return value
        finally:
            job.end_handler()

    async def _turn(self, job: Job, plan: Plan, begin: Handle, beside: RunOnThread) -> ToolCallResult:
        """Handle an event within the agent's turn middlewares (003 §6)."""
        run, state = job.claim.run, job.ensure_turn_state()
        answer = await around_turn(
            run,
            partial(begin, job.read()["args"]),
            self.pipelines,
            self.events,
            cancellation=job.ensure_cancellation(),
            on_thread=beside,
            state=state,
        )
        if state.conversation is not None:  # middlewares may have changed it since
            await _to_its_end(state.conversation.end, beside)
        if self.contexts.agents is not None:
            await self.contexts.agents.reply(run, answer)
        return run.ok(answer, job.started_at)

    async def _onion(self, job: Job, plan: Plan, begin: Handle, beside: RunOnThread) -> Any:
        """Run a tool call within its middlewares, and tell listeners of it."""
        if plan.is_heard:
            tell_called(self.events, job.original)

        async def core(around: ToolCallContext) -> Any:
            arguments = _valid(plan, around.args)
            if plan.asks:
                held = self.endings.suspension.hold(job.claim.run, plan.tool.bound)
                if held is not None:
                    return self.endings.of_value(job.claim.run, held, None)
            job.around = around
            value = await begin(arguments)
            is_seen = plan.sees_result or may_be_pending(value) or is_on_loop()
            return self._shown(job, value) if is_seen else HandlerValue(value)

        def shape(answer: Any) -> Any:
            if isinstance(answer, HandlerValue) or answer is job.shown:
                return answer
            return self.endings.of_middleware(job.claim.run, answer, plan.message_limit, job.started_at)

        if plan.older is None:
            chain = compose(plan.layers, core, on_thread=beside, shape=shape)
        else:
            chain = self._within_older(job, plan, core, beside, shape)
        answer = await chain(JobCallContext.of(job))
        return HandlerValue(job.output) if answer is job.shown else answer

    def _within_older(
        self, job: Job, plan: Plan, core: Core[Any], beside: RunOnThread, shape: Shape
    ) -> Core[ToolCallContext]:
        """Wrap the core of a call in its middlewares and the functions of older extensions."""
        run = job.claim.run

        def failed(error: BaseException) -> ToolCallResult:
            return self.endings.of_error(run, error, plan.message_limit, job.started_at)

        services = MiddlewareServices(job.ensure_cancellation(), beside, shape, failed)
        # its extensions may have been unloaded since
        return self.pipelines.around_call(run, services, core) or core

    def _shown(self, job: Job, value: Any) -> ToolCallResult:
        """Return the result that async middlewares see of a handler's value."""
        if job.is_plain and not may_be_pending(value):
            result = shown_result(job, value)
        else:
            result = self.endings.of_value(job.claim.run, value, job.started_at)
        if result.status == "ok":
            job.shown, job.output = result, value
        return result

    # Results.

    def plain_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> bytes | None:
        """Return the result of a call as JSON; ``None`` if more has to be done about it.

        What the value's own code raises becomes the error of ``outcome``.
        """
        if outcome.error is None:
            made = outcome_of(partial(self._plain_success, job, plan, outcome.get()))
            if made.error is None:
                return made.get()
            outcome.error = made.error
        failed = outcome_of(partial(self._plain_failure, job, plan, outcome.error))
        return failed.get() if failed.error is None else None

    def _plain_success(self, job: Job, plan: Plan, value: Any) -> bytes | None:
        """Return the result of a value."""
        if plan.is_wrapped:
            if plan.is_heard or not isinstance(value, HandlerValue):
                return None
            value = value.value
        is_plain = job.is_plain and job.approved_by is None and self.plans.is_current(plan)
        if not is_plain or may_be_pending(value):
            return None
        dynamic = self.registry.dynamic
        if dynamic.has_turns and dynamic.untold(job.agent, job.turn):
            return None
        try:
            output = serializer.encode(value, serializer.DEEPEST)
        except serializer.NotJsonError:
            return None
        if len(output) > self.endings.outputs.max_bytes or KNOWN_SECRETS.may_be_in(output):
            return None
        job.output, job.output_text = value, output
        return result_of(job, job.read(), output.decode())

    def _plain_failure(self, job: Job, plan: Plan, error: BaseException) -> bytes | None:
        """Return the result of an error."""
        is_plain = plan.fails_plainly and job.is_plain and job.approved_by is None and job.turn_state is None
        has_begun = job.started_at is not None and job.cancellation is None
        if not (is_plain and has_begun and self.plans.is_current(plan)):
            return None
        described = self.endings.described(error, plan.message_limit)
        text = described.model_dump_json(by_alias=True, exclude_none=True)
        wire = result_of(job, job.read(), text, is_error=True)
        job.error, job.output = described, None
        log_raised(job.log_fields.known(), described)
        return wire

    def general_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        """Return the result of a call, whatever it has returned or raised; this may block."""
        result = _mirrored(self._described(job, plan, outcome), plan)
        state = job.turn_state
        if state is not None and state.usage:
            reason = state.finish_reason or (None if result.error is None else "error")
            result = with_meta(result, usage=dict(state.usage), finish_reason=reason)
        if plan.tool.bound.tool.name != SYSTEM_TOOL:
            running.set(job)
            tell_completed(self.events, job.original, result)
        return result

    def _described(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        run, endings = job.claim.run, self.endings

        def result() -> ToolCallResult:
            made = self._of_value(job, plan, outcome.get())
            untold = endings.untold(run)
            if untold:
                endings.tell(run, untold)
            return blocking(endings.storable(run, made, plan.tool.bound))

        # raised again, an error would have further frames, of ours
        ended: FunctionOutcome[ToolCallResult] = outcome_of(result) if outcome.error is None else outcome
        if ended.error is None:
            return ended.get()
        return self._of_error(job, ended.error)

    def _of_value(self, job: Job, plan: Plan, value: Any) -> ToolCallResult:
        if isinstance(value, HandlerValue):
            value = value.value
        elif plan.is_wrapped:
            made: ToolCallResult = value
            return made
        if _is_unfinished(plan, value):
            plan.note_awaited()
            value = self.event_loop.submit(awaited_outcome(_awaited(job, value))).result().get()
        if isinstance(value, ModelAnswer):
            answered = job.claim.run.ok(value.to_wire(), job.started_at)
            job.ensure_turn_state().note(value.usage, value.finish_reason)
            return answered
        return self.endings.of_value(job.claim.run, value, job.started_at)


def _is_unfinished(plan: Plan, value: Any) -> bool:
    """Return whether a plain handler has returned something to await."""
    return not plan.is_awaited and inspect.isawaitable(value)


async def _awaited(job: Job, value: Awaitable[Any]) -> Any:
    """Await what a plain handler has returned, on the event loop; it is cancelled with its call.

    Raises:
        GoondanError: the call was cancelled before that; a coroutine is not begun then.
        BaseException: whatever ``value`` raises.
    """
    task, loop, cancellation = asyncio.current_task(), asyncio.get_running_loop(), job.ensure_cancellation()
    if cancellation.error is not None and inspect.iscoroutine(value):
        value.close()
        raise cancellation.error

    def interrupt() -> None:
        if task is not None and not task.cancelling():  # it may be cleaning up
            task.cancel()

    forget = cancellation.on_cancel(partial(loop.call_soon_threadsafe, interrupt))
    try:
        return await value
    finally:
        forget()


def _valid(plan: Plan, arguments: JsonObject) -> JsonObject:
    """Return the arguments of a call.

    Raises:
        ToolInputValidationError: they do not match the tool's schema.
    """
    faults = plan.tool.arguments.faults(arguments)
    if faults:
        raise ToolInputValidationError("; ".join(faults))
    return arguments


async def _to_its_end(function: Callable[[], object], beside: RunOnThread) -> None:
    """Call what blocks, and wait for its end even if this is cancelled meanwhile."""
    if not is_on_loop():
        function()
        return
    task = asyncio.ensure_future(beside_loop(function, beside))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _mirrored(result: ToolCallResult, plan: Plan | None) -> ToolCallResult:
    """Copy an error into the output, too, if the tool is one of the older version."""
    if result.status != "error":
        return result
    is_older = plan is not None and plan.tool.bound.is_v1
    return with_error_in_output(result) if is_older else with_error_in_output_by_name(result)
