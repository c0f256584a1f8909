"""Plain calls: their plans, one for each export, and how a call is run by its plan.

A plain call is run on the lead's thread. If its handler or a middleware is async, or its handler runs in
another process, it is run on the event loop as a whole, and a blocking handler beside it. What a call does
not need is not in its plan: middlewares and older functions, listeners, the approval.

Without a plan are events, requests to models, calls with a span or a revision, and those of tools that are
not loaded yet, that only the Turn has, or that the catalog guard must look up. These are run by
:meth:`workers.executor.Executor.execute`. Both ways make their results with :mod:`workers.endings`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from broker_config import serializer
from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.errors import ToolInputValidationError, ToolTimeoutError
from goondan_tasks.contract.failure import with_error_in_output, with_error_in_output_by_name
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.names import STEP_TOOL, SYSTEM_TOOL
from goondan_tasks.contract.output import may_be_pending
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.call_onion import HandlerValue, JobCallContext
from workers.concurrency.event_loop import EventLoopThread, RunOnThread, beside_loop, drive, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.contexts import ContextFactory
from workers.endings import Endings
from workers.extensions.events import (
    TOOL_CALLED,
    TOOL_COMPLETED,
    EventListeners,
    running,
    tell_called,
    tell_completed,
)
from workers.extensions.pipelines import AgentPipelines
from workers.instances.workdirs import OpenWait
from workers.job import Job, result_of
from workers.outcome import FunctionOutcome, outcome_of
from workers.plan import Plan, SlowToolDetector, Stamp
from workers.processes.isolation import IsolatedTool
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry
from workers.turns.opening import opening_detector, plan_of_opening
from workers.turns.pipeline import Core, MiddlewareServices, Shape, blocking, compose

#: runs a call's handler with its arguments: on this thread, on the event loop, or beside it
Handle = Callable[[JsonObject], Awaitable[Any]]

#: marks a call as started again, since its mark is old; may raise a GoondanError
MarkAgain = Callable[[Job], None]


@dataclass(eq=False)
class Plans:
    """The plans of one registry of tools."""

    registry: Registry
    contexts: ContextFactory
    pipelines: AgentPipelines
    events: EventListeners
    endings: Endings
    event_loop: EventLoopThread
    #: by agent and tool; only of tools whose calls are plain
    _plans: dict[tuple[str, str], Plan] = field(default_factory=dict, init=False)
    #: by agent and tool; only of tools whose handlers have run
    _detectors: dict[tuple[str, str], SlowToolDetector] = field(default_factory=dict, init=False)

    def is_slow(self, job: Job) -> bool:
        """Return whether the handler of a call's tool is likely to keep short calls waiting."""
        detector = self._detectors.get((job.agent, job.tool_name))
        return detector is not None and detector.is_slow

    def detector(self, agent: str, name: str) -> SlowToolDetector:
        """Return what learns from the runs of a tool whether it is slow."""
        return self._detectors.setdefault((agent, name), SlowToolDetector())

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Read the catalogs of the Steps of claimed calls, in one trip."""
        self.endings.guard.learn(job.read() for job in jobs if job.is_plain)

    def of(self, job: Job) -> Plan | None:
        """Return how a call that has been classified is run; ``None`` if it is not plain.

        A plan is made again when extensions have put middlewares around calls, or listen to them, since.
        """
        if not job.is_plain:
            return None
        call, agent, name = job.read(), job.agent, job.tool_name
        if self.registry.dynamic.has_turns and name in self.registry.dynamic.of(agent, job.turn):
            return None  # the Turn has a tool of its own
        plan, stamp = self._plans.get((agent, name)), self._stamp
        if plan is None or plan.stamp != stamp:
            plan = self._made(agent, name, stamp)
            if plan is None:  # not remembered, since models make names up
                return None
            self._plans[agent, name] = plan
        if "timeoutSeconds" in call and not plan.takes_call:
            try:
                plan = self._limited(job, plan)
            except ToolTimeoutError:
                return None
        if not (plan.takes_call or self.contexts.knows(agent, call["instanceKey"])):
            return None
        return plan if "stepId" not in call or self.endings.guard.admits(call) else None

    @property
    def _stamp(self) -> Stamp:
        """The versions that change whenever extensions change what happens around calls."""
        return self.pipelines.ranks.version, self.events.version, self.registry.dynamic.lasting_version

    def _limited(self, job: Job, plan: Plan) -> Plan:
        """Return the plan of one call, which has a time limit of its own.

        Raises:
            ToolTimeoutError: nothing is left of it.
        """
        limit = self.contexts.limit_seconds(job.claim.run, plan.tool.bound)
        return replace(plan, limit_seconds=limit, handler=self._handler(plan.tool, limit))

    def _handler(self, tool: RegisteredTool, limit_seconds: float) -> Callable[[Any, JsonObject], Any]:
        if tool.bound.is_v1:
            return self.contexts.older_handler(tool, limit_seconds)
        if isinstance(tool.handler, IsolatedTool):
            return tool.handler.handler(limit_seconds)
        return tool.handler

    def _made(self, agent: str, name: str, stamp: Stamp) -> Plan | None:
        events, registry = self.events, self.registry
        if name == STEP_TOOL:
            detector = self._detectors.setdefault((agent, name), opening_detector())
            return plan_of_opening(registry, agent, self.contexts.longest_seconds, detector, stamp)
        tool = registry.ready(agent, name)
        if tool is None or tool.only_waits or registry.bound(agent, name) is not tool.bound:
            return None
        bound, detector = tool.bound, self.detector(agent, name)
        limit_seconds = self.contexts.longest_seconds(bound)
        handler = self._handler(tool, limit_seconds)
        if bound.tool.name == SYSTEM_TOOL:  # extensions have nothing to do with it
            return Plan(tool, handler, limit_seconds, detector, stamp)
        if registry.is_open and not registry.is_offered(agent, name):  # the guard logs each of its calls
            return None
        is_heard = events.has(agent, TOOL_CALLED) or events.has(agent, TOOL_COMPLETED)
        return Plan(
            tool,
            handler,
            limit_seconds,
            detector,
            stamp,
            self.pipelines.layers(agent, "toolCall"),
            older=self.pipelines.older(agent),
            is_heard=is_heard,
            asks=self.endings.suspension.asks(bound),
            is_isolated=isinstance(tool.handler, IsolatedTool),
        )

    def workdir(self, job: Job) -> Path:
        """Return the workdir of a plain call, made on first use; raises as ``InstanceWorkdirs.open``."""
        assert job.plan is not None  # noqa: S101 - a plain call
        patience = OpenWait(job.seconds_left, job.cancellation)
        return self.contexts.workdirs.open(job.agent, job.read()["instanceKey"], patience)

    def wire(self, job: Job, *, limit_seconds: float) -> JsonObject:
        """Make the context of a plain call for a handler in another process; this may block."""
        return self.contexts.wire(job.read(), job.id, job.token, job.queued_at, limit_seconds=limit_seconds)

    def early_result(self, job: Job, plan: Plan) -> ToolCallResult | None:
        """Return the result of a plain call with invalid arguments, or of one that waits for an approval.

        ``None`` if its handler may begin, or if anything is around the call: that comes first, and
        middlewares may change the arguments.
        """
        if plan.is_wrapped:
            return None
        faults = plan.tool.arguments.faults(job.read()["args"])
        if not (faults or plan.asks):
            return None
        run = job.claim.run
        if faults:
            error = ToolInputValidationError("; ".join(faults))
            return _mirrored(self.endings.of_error(run, error, plan.message_limit, None), plan)
        held = self.endings.suspension.hold(run, plan.tool.bound)
        return None if held is None else self.endings.suspension.result(run, held, None)

    def run(
        self, job: Job, plan: Plan, context: ToolContext, mark_again: MarkAgain
    ) -> bytes | ToolCallResult:
        """Run a plain call on this thread; return its result, as JSON if the result is plain."""
        running.set(job)
        called = partial(self._called, job, plan, context, mark_again)
        outcome = outcome_of(partial(plan.detector.timed, called))
        result = self.plain_result(job, plan, outcome)
        return self.general_result(job, plan, outcome) if result is None else result

    def _called(self, job: Job, plan: Plan, context: ToolContext, mark_again: MarkAgain) -> Any:
        """Run the handler of a plain call, within what is around it, if anything is."""
        if not plan.is_wrapped:
            return plan.handler(job.original if plan.takes_call else context, job.read()["args"])

        async def handle(arguments: JsonObject) -> Any:
            here = partial(plan.handler, context, arguments)
            return await beside_loop(here, on_new_thread) if is_on_loop() else here()

        coroutine = self._wrapped(job, plan, handle, on_new_thread, mark_again)
        ended = drive(coroutine)
        if ended is not None:
            return ended[0]
        plan.on_loop = True  # a plain middleware has awaited something; the next calls begin there
        return self.event_loop.submit(coroutine).result()

    async def run_on_loop(
        self, job: Job, plan: Plan, handle: Handle, beside: RunOnThread, mark_again: MarkAgain
    ) -> Any:
        """Run a plain call on the event loop; ``beside`` runs plain middlewares, which may block."""
        running.set(job)
        if plan.is_wrapped:
            return await self._wrapped(job, plan, handle, beside, mark_again)
        return await handle(job.read()["args"])

    async def _wrapped(
        self, job: Job, plan: Plan, handle: Handle, beside: RunOnThread, mark_again: MarkAgain
    ) -> Any:
        """Return the handler's value, or the result that a middleware has given instead."""
        if plan.is_heard:
            tell_called(self.events, job.original)

        async def core(around: ToolCallContext) -> Any:
            faults = plan.tool.arguments.faults(around.args)
            if faults:
                raise ToolInputValidationError("; ".join(faults))
            if plan.asks:
                held = self.endings.suspension.hold(job.claim.run, plan.tool.bound)
                if held is not None:
                    return self.endings.of_value(job.claim.run, held, None)
            if not job.is_fresh:  # middlewares have taken long, and the process may have been frozen
                again = partial(mark_again, job)
                await beside_loop(again, beside) if is_on_loop() else again()
            job.around = around
            job.begin_handler()
            try:
                value = await handle(around.args)
            finally:
                job.end_handler()
            is_seen = is_on_loop() or plan.older is not None
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
        wrapped = self.pipelines.around_call(run, services, core)
        return core if wrapped is None else wrapped[0]  # its extensions have been unloaded since

    def _shown(self, job: Job, value: Any) -> ToolCallResult:
        """Return the result that async middlewares see of a handler's value."""
        result = self.endings.of_value(job.claim.run, value, job.started_at)
        if result.status == "ok":
            job.shown, job.output = result, value
        return result

    def plain_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> bytes | None:
        """Return the result of a plain call as JSON; ``None`` if the result is not plain."""
        if outcome.error is not None:
            return None
        value = outcome.get()
        if plan.is_wrapped:
            if plan.is_heard or not isinstance(value, HandlerValue):
                return None
            value = value.value
        if self._stamp != plan.stamp or may_be_pending(value) or job.approved_by is not None:
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

    def general_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        """Return the result of a plain call, whatever it has returned or raised; this may block."""
        result = _mirrored(self._described(job, plan, outcome), plan)
        if plan.tool.bound.tool.name != SYSTEM_TOOL:
            running.set(job)
            tell_completed(self.events, job.original, result)
        return result

    def _described(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        run, endings = job.claim.run, self.endings

        def result() -> ToolCallResult:
            value = outcome.get()
            if plan.is_wrapped and not isinstance(value, HandlerValue):
                made: ToolCallResult = value
            else:
                value = value.value if isinstance(value, HandlerValue) else value
                made = endings.of_value(run, value, job.started_at)
            untold = endings.untold(run)
            if untold:
                endings.tell(run, untold)
            return blocking(endings.storable(run, made, plan.tool.bound))

        ended = outcome_of(result)
        if ended.error is None:
            return ended.get()
        cause = job.cancellation.error if job.cancellation is not None else None
        return endings.of_error(run, cause or ended.error, plan.message_limit, job.started_at)


def _mirrored(result: ToolCallResult, plan: Plan) -> ToolCallResult:
    """Copy an error into the output, too, if the tool is one of the older version."""
    if result.status != "error":
        return result
    return with_error_in_output(result) if plan.tool.bound.is_v1 else with_error_in_output_by_name(result)
