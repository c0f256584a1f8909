"""The executor takes a call through five steps to its one result. It never raises.

1. guard: is the tool in the Step's catalog (003 §7)? It fails closed, before any middleware.
2. pipeline: the ``toolCall`` middlewares, an onion around the other steps (003 §6).
3. arguments: checked against the tool's JSON Schema, after middlewares may have changed them.
4. handler: ``handler(ctx, input)``, in the instance's workdir.
5. outcome: the value or the exception becomes the ToolCallResult (003 §8); a large output becomes a file.

Plain calls, whose middlewares are plain, too, take a shorter path to the same result (:mod:`workers.job`).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from broker_config import serializer
from goondan_tasks.bundle import BoundTool
from goondan_tasks.calls import Run, with_meta
from goondan_tasks.errors import (
    GoondanError,
    HandoffError,
    MiddlewareError,
    ToolError,
    ToolInputValidationError,
)
from goondan_tasks.events import handling_agent, is_event
from goondan_tasks.extension_api import ToolCallContext
from goondan_tasks.failure import (
    DEFAULT_MESSAGE_LIMIT,
    describe,
    traceback_text,
    with_error_in_output,
    with_error_in_output_by_name,
)
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.names import SYSTEM_TOOL
from goondan_tasks.output import Pending, bad_output, encoded_output, may_be_pending, pending_of
from goondan_tasks.redaction import KNOWN_SECRETS
from goondan_tasks.tool_api import ToolContext
from workers.call_onion import HandlerValue, JobCallContext, call_context
from workers.cancellation import Cancellation, Watch
from workers.concurrency.event_loop import (
    EventLoopThread,
    beside_loop,
    drive,
    is_on_loop,
    move_to_loop,
)
from workers.concurrency.slots import Wait
from workers.concurrency.threads import on_new_thread
from workers.contexts import ContextFactory, RunServices
from workers.extensions.events import (
    TOOL_CALLED,
    TOOL_COMPLETED,
    EventListeners,
    running,
    tell_called,
    tell_completed,
)
from workers.extensions.pipelines import AgentPipelines
from workers.forks import end_fork
from workers.handlers import timed_out, way_timed_out
from workers.instances.outputs import Outputs
from workers.instances.workdirs import OpenWait
from workers.job import Job, Plan, SlowToolDetector, Stamp, result_of
from workers.outcome import FunctionOutcome, awaited_outcome, outcome_of
from workers.processes.isolation import IsolatedTool
from workers.results import Suspension, limited, without_secrets
from workers.thinking.model_request import ModelAnswer
from workers.tools.dynamic_tools import turn_of
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.pipeline import Layer, MiddlewareServices, compose
from workers.turns.turns import Turns

logger = structlog.get_logger(__name__)

T = TypeVar("T")

#: how long an async handler that is cancelled at its limit may take to end before the call ends without it
PATIENCE_SECONDS = 1.0

#: marks the run as started just before the first code around the call begins, and returns the time in ms
StartMark = Callable[[], float]


@dataclass(slots=True)
class _Attempt:
    """A run and how far it has come: whenever it fails, its result is made from this."""

    run: Run
    mark_started: StartMark
    watch: Watch
    services: RunServices
    message_limit: int = DEFAULT_MESSAGE_LIMIT
    limit_seconds: float = 0.0
    #: whether the run is marked as started, and when its handler began
    is_marked: bool = False
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
        """Mark the run as started, once: its middlewares may have effects, too (DESIGN "Delivery" rule 4)."""
        if not self.is_marked:
            self.mark_started()
            self.is_marked = True

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
    outputs: Outputs
    suspension: Suspension
    event_loop: EventLoopThread
    help_url: str
    #: by agent and tool; only of tools whose calls are plain
    _plans: dict[tuple[str, str], Plan] = field(default_factory=dict, init=False)
    #: by agent and tool; only of tools whose handlers have run
    _detectors: dict[tuple[str, str], SlowToolDetector] = field(default_factory=dict, init=False)

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
            result = self._failed(run, cause, attempt.message_limit, attempt.started_at)
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
            untold = self.registry.dynamic.untold(run.call)
            if untold:
                await _may_block(attempt, partial(self._note_unregistered, run, untold))
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
        return await self._storable(run, result, bound)

    def is_slow(self, job: Job) -> bool:
        """Return whether the handler of a call's tool is likely to keep short calls waiting."""
        detector = self._detectors.get((job.agent, job.tool_name))
        return detector is not None and detector.is_slow

    def _detector(self, agent: str, name: str) -> SlowToolDetector:
        return self._detectors.setdefault((agent, name), SlowToolDetector())

    def plan(self, job: Job) -> Plan | None:
        """Return how a call that has been classified is run; ``None`` if it needs the general path.

        A plan is made again when extensions have put middlewares around calls, or listen to them, since.
        """
        if not job.is_plain:
            return None
        call, agent, name = job.read(), job.agent, job.tool_name
        plan, stamp = self._plans.get((agent, name)), self._stamp
        if plan is None or plan.stamp != stamp:
            plan = self._made_plan(agent, name, stamp)
            if plan is None:  # not remembered, since models make names up
                return None
            self._plans[agent, name] = plan
        if plan.suspends or not self.contexts.knows(agent, call["instanceKey"]):
            return None
        return plan if "stepId" not in call or self.guard.admits(call) else None

    @property
    def _stamp(self) -> Stamp:
        """The versions that change whenever extensions change what happens around calls."""
        return self.pipelines.ranks.version, self.events.version, self.registry.dynamic.version

    def workdir(self, job: Job) -> Path:
        """Return the workdir of a plain call, made on first use; raises as ``InstanceWorkdirs.open``."""
        assert job.plan is not None  # noqa: S101 - a plain call
        patience = OpenWait(job.seconds_left, job.cancellation)
        return self.contexts.workdirs.open(job.agent, job.read()["instanceKey"], patience)

    def wire(self, job: Job, *, limit_seconds: float) -> JsonObject:
        """Make the context of a plain call for a handler in another process; this may block."""
        return self.contexts.wire(job.read(), job.id, job.token, job.queued_at, limit_seconds=limit_seconds)

    def _made_plan(self, agent: str, name: str, stamp: Stamp) -> Plan | None:
        events, registry = self.events, self.registry
        if (
            self.pipelines.has_older(agent)
            or events.has(agent, TOOL_CALLED)
            or events.has(agent, TOOL_COMPLETED)
            or registry.dynamic.has_turns
        ):
            return None
        tool, layers = registry.ready(agent, name), self.pipelines.layers(agent, "toolCall")
        if layers and any(layer.is_async for layer in layers):
            return None
        if tool is None or tool.only_waits or tool.bound.is_v1 or isinstance(tool.handler, IsolatedTool):
            return None
        bound = tool.bound
        is_open = (
            registry.is_open or registry.bound(agent, name) is not bound or bound.tool.name == SYSTEM_TOOL
        )
        if is_open or self.suspension.asks(bound) or (layers and tool.is_async):
            return None
        detector = self._detector(agent, name)
        return Plan(tool, tool.handler, self.contexts.longest_seconds(bound), detector, stamp, layers)

    def refuse_arguments(self, job: Job, plan: Plan) -> ToolCallResult | None:
        """Return the result of a plain call with invalid arguments; ``None`` if they are valid.

        If the call has middlewares, these may change its arguments first.
        """
        if plan.layers:
            return None
        faults = plan.tool.arguments.faults(job.read()["args"])
        if not faults:
            return None
        error = ToolInputValidationError("; ".join(faults))
        return with_error_in_output_by_name(self._failed(job.claim.run, error, plan.message_limit, None))

    def run_plain(self, job: Job, plan: Plan, context: ToolContext) -> bytes | ToolCallResult:
        """Run the handler of a plain call; return its result, as JSON if the result is plain."""
        running.set(job)
        outcome = outcome_of(partial(plan.detector.timed, partial(self._called, job, plan, context)))
        if isinstance(made := outcome.peek(), ToolCallResult) and plan.layers:
            return self._completed(job, plan, lambda: made)
        result = self.plain_result(job, plan, outcome)
        return self.general_result(job, plan, outcome) if result is None else result

    def _called(self, job: Job, plan: Plan, context: ToolContext) -> Any:
        """Run the handler of a plain call within its middlewares; return its value, or a result of theirs."""
        if not plan.layers:
            return plan.handler(context, job.read()["args"])
        core, shape = partial(self._core, job, plan, context), partial(self._shaped, job, plan)
        coroutine: Any = compose(plan.layers, core, shape=shape)(JobCallContext.of(job))
        ended = drive(coroutine)
        plan.suspends = ended is None
        answer = self.event_loop.submit(coroutine).result() if ended is None else ended[0]
        return answer.value if isinstance(answer, HandlerValue) else answer

    async def _core(self, job: Job, plan: Plan, context: ToolContext, around: ToolCallContext) -> Any:
        """Check the arguments and run the handler, within the middlewares."""
        faults = plan.tool.arguments.faults(around.args)
        if faults:
            raise ToolInputValidationError("; ".join(faults))
        handle = partial(plan.handler, context, around.args)
        job.begin_handler()
        try:
            if not is_on_loop():
                return HandlerValue(handle())
            value = await beside_loop(handle, on_new_thread)
        finally:
            job.end_handler()
        return self._outcome(job.claim.run, value, job.started_at)

    def _shaped(self, job: Job, plan: Plan, answer: Any) -> Any:
        """Return the answer of a middleware for the layer outside of it."""
        if isinstance(answer, HandlerValue):
            return answer
        run = job.claim.run
        if isinstance(answer, ToolCallResult):
            return self._adopted(run, answer, plan.message_limit, job.started_at)
        return self._outcome(run, _require_json(answer), job.started_at)

    def plain_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> bytes | None:
        """Return the result of a plain call as JSON; ``None`` if the result is not plain."""
        if outcome.error is not None:
            return None
        value = outcome.get()
        if self._stamp != plan.stamp or may_be_pending(value):
            return None
        try:
            output = serializer.encode(value, serializer.DEEPEST)
        except serializer.NotJsonError:
            return None
        if len(output) > self.outputs.max_bytes or KNOWN_SECRETS.may_be_in(output):
            return None
        job.output, job.output_text = value, output
        return result_of(job, job.read(), output.decode())

    def general_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        """Return the result of a plain call, whatever its handler has returned or raised; this may block."""
        run = job.claim.run
        return self._completed(job, plan, lambda: self._outcome(run, outcome.get(), job.started_at))

    def _completed(self, job: Job, plan: Plan, make: Callable[[], ToolCallResult]) -> ToolCallResult:
        """Return the result that ``make`` makes as it is stored, or that of its error."""
        run = job.claim.run

        def result() -> ToolCallResult:
            result = make()
            untold = self.registry.dynamic.untold(run.call)
            if untold:
                self._note_unregistered(run, untold)
            ended = drive(self._storable(run, result, plan.tool.bound))
            assert ended is not None  # noqa: S101 - off the event loop it does not suspend
            return ended[0]

        ended = outcome_of(result)
        if ended.error is None:
            return ended.get()
        cause = job.cancellation.error if job.cancellation is not None else None
        failed = self._failed(run, cause or ended.error, plan.message_limit, job.started_at)
        return with_error_in_output_by_name(failed)

    def _note_unregistered(self, run: Run, names: Collection[str]) -> None:
        """Tell other workers which tools the Turn has lost; if that fails, the result is still valid."""
        try:
            self.guard.note_unregistered(run.call, names)
        except GoondanError as error:
            logger.warning("tools.unregistered_here_only", **run.log_fields, reason=error.message)

    async def _through_middlewares(self, attempt: _Attempt, bound: BoundTool) -> ToolCallResult:
        """Run the handler inside the agent's middlewares."""
        run, services = attempt.run, attempt.services

        async def core(context: ToolCallContext) -> ToolCallResult:
            attempt.around = context
            return self._outcome(run, await self._handle(attempt, context.args), attempt.started_at)

        def shape(answer: Any) -> ToolCallResult:
            if isinstance(answer, ToolCallResult):
                return self._adopted(run, answer, attempt.message_limit, attempt.started_at)
            return self._outcome(run, _require_json(answer), attempt.started_at)

        def failed(error: BaseException) -> ToolCallResult:
            return self._failed(run, error, attempt.message_limit, attempt.started_at)

        of_run = MiddlewareServices(services.cancellation, services.on_thread, shape, failed)
        wrapped = self.pipelines.around_call(run, of_run, core)
        if wrapped is None:
            return self._outcome(run, await self._handle(attempt, run.call.args), attempt.started_at)
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
        held = self.suspension.hold(run, tool.bound)
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
            return self._detector(*names).timed(partial(handle, context, arguments))
        if tool.is_async:
            attempt.only_waits = tool.only_waits
            return tool.handler(context, arguments)
        call_off = attempt.watch(limit)
        try:
            return self._detector(*names).timed(partial(tool.handler, context, arguments))
        finally:
            call_off()

    def _tool(self, attempt: _Attempt) -> RegisteredTool:
        call, cancellation = attempt.run.call, attempt.services.cancellation
        agent, name, turn = call.agent_name, call.tool_name, turn_of(call)
        limit = partial(self.contexts.limit_seconds, attempt.run)
        return self.registry.ready(agent, name, turn) or self.registry.tool(
            agent, name, turn=turn, limit=limit, cancellation=cancellation
        )

    def _failed(
        self, run: Run, cause: BaseException, message_limit: int, started_at: float | None
    ) -> ToolCallResult:
        described = describe(
            cause,
            help_url=self.help_url,
            message_limit=message_limit,
            default=HandoffError if is_event(run.call) else ToolError,
        )
        is_ours = isinstance(cause, GoondanError | asyncio.CancelledError)
        if not is_ours or (isinstance(cause, MiddlewareError) and cause.__cause__ is not None):
            described = described.with_traceback(traceback_text(cause))
        if described.traceback is not None:  # it was raised here, or in another process
            logger.warning("call.raised", **run.log_fields, exception=described.traceback)
        return run.failed(described, started_at)

    def _outcome(self, run: Run, value: Any, started_at: float | None) -> ToolCallResult:
        """Return the result of a value: final, or pending if the value says so."""
        pending = pending_of(value)
        if pending is None:
            return run.ok(value, started_at)
        return self.suspension.result(run, pending, started_at)

    def _adopted(
        self, run: Run, result: ToolCallResult, message_limit: int, started_at: float | None
    ) -> ToolCallResult:
        """Return the result that a middleware has made; a pending one gets an expiry if it has none."""
        adopted = limited(run.adopted(result, started_at), message_limit)
        if adopted.status == "pending" and adopted.meta.expires_at is None:
            return self._outcome(run, Pending(adopted.handle or "", adopted.output), started_at)
        return adopted

    async def _storable(self, run: Run, result: ToolCallResult, bound: BoundTool) -> ToolCallResult:
        """Return the result as it is stored: with secrets masked, and a large output in a file."""
        if result.output is None:
            return without_secrets(result)
        author = handling_agent(run.call) or bound.name
        data, output = encoded_output(result.output, author)
        if output is not result.output:
            result = result.model_copy(update={"output": output})
        shown = without_secrets(result)
        if shown is not result:
            result, data = shown, encoded_output(shown.output, author).data
        if len(data) <= self.outputs.max_bytes:
            return result
        stored = await self.outputs.store(run, data)
        return with_meta(result.model_copy(update={"output": stored.to_wire()}), output_file=stored.path)


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


def _require_json(answer: Any) -> Any:
    try:
        serializer.encode(answer, serializer.DEEPEST, repairs=True)
    except serializer.NotJsonError as error:
        raise ValueError(bad_output(answer, error, "it").message.removesuffix(".")) from error
    return answer


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
