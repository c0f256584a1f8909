"""How calls are run: a plan for each export, worked out once (:mod:`workers.plan`).

What a call does not need is not in its plan: middlewares and older functions, listeners, the approval. Most
calls find their plan here. Others need something that may block first: their tool is not loaded yet, or only
their Turn has it, the catalog guard must look up their Step, their instance is not known here, or they are
events (:meth:`Plans.prepared`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import ToolTimeoutError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.names import EVENT_TOOLS, STEP_TOOL, SYSTEM_TOOL
from goondan_tasks.contract.schema import compile_schema
from workers.cancellation import Watch
from workers.concurrency.event_loop import beside_loop
from workers.concurrency.slots import Wait
from workers.concurrency.threads import SHORT_SECONDS, on_new_thread
from workers.contexts import ContextFactory
from workers.endings import Endings
from workers.extensions.events import TOOL_CALLED, TOOL_COMPLETED, EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.instances.workdirs import OpenWait
from workers.job import Job
from workers.outcome import outcome_of
from workers.plain_context import PlainContext, waits_of, whole_of
from workers.plan import Plan, Runner, SlowToolDetector, Stamp
from workers.processes.isolation import IsolatedTool
from workers.tools.dynamic_tools import turn_of
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry


@dataclass(eq=False)
class Plans:
    """The plans of one registry of tools."""

    registry: Registry
    contexts: ContextFactory
    pipelines: AgentPipelines
    events: EventListeners
    endings: Endings
    #: runs the calls
    runner: Runner
    #: by agent and tool; only of tools that all calls of this name have
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

    def learn_steps(self, jobs: Iterable[Job]) -> None:
        """Read the catalogs of the Steps of claimed calls, in one trip."""
        self.endings.guard.learn(job.read() for job in jobs if job.is_plain)

    def is_current(self, plan: Plan) -> bool:
        """Return whether extensions have changed nothing around calls since a plan was made."""
        return plan.stamp == self._stamp

    def of(self, job: Job) -> Plan | None:
        """Return how a call that has been classified is run; ``None`` if it has to be prepared."""
        if not job.is_plain:
            return None
        call, agent, name = job.read(), job.agent, job.tool_name
        if self.registry.dynamic.has_turns and name in self.registry.dynamic.of(agent, job.turn):
            return None  # the Turn has a tool of its own
        plan = self._common(agent, name)
        if plan is None:
            return None
        if "timeoutSeconds" in call:
            try:
                plan = self._limited(plan, job.claim.run)
            except ToolTimeoutError:
                return None
        if not (plan.takes_job or self.contexts.knows(agent, call["instanceKey"])):
            return None
        return plan if "stepId" not in call or self.endings.guard.admits(call, job.bundle_ref) else None

    def prepared(self, job: Job, watch: Watch) -> Plan:
        """Return how any call is run, and set its :attr:`Job.plan`; this may block.

        What its handler needs is loaded and opened; if that fails, the handler of the plan raises the error,
        within what is around it. ``watch`` limits the middlewares that register the tools of its Step.

        Raises:
            GoondanError: the call must not be run, or what it needs is not there; :attr:`Job.plan` is set if
                its tool is known.
        """
        run = job.claim.run
        call = run.call
        bound = self.endings.guard.admit(call, watch)
        ready = outcome_of(partial(self._ready, job, bound))
        if ready.error is not None:
            plan = job.plan = self._failing(call, bound, ready.error)
            if not plan.is_wrapped:
                raise ready.error
        else:
            plan = job.plan = self._limited(self._plan_for(call, ready.get()), run)
        if plan.is_turn and self.contexts.agents is not None:
            job.ensure_turn_state().conversation = self.contexts.agents.conversation(run)
        return plan

    @property
    def _stamp(self) -> Stamp:
        """The versions that change whenever extensions change what happens around calls."""
        return self.pipelines.ranks.version, self.events.version, self.registry.dynamic.lasting_version

    def _ready(self, job: Job, bound: BoundTool) -> RegisteredTool:
        """Load a call's tool, and open its workdir."""
        run, cancellation = job.claim.run, job.ensure_cancellation()
        call = run.call
        limit = partial(self.contexts.limit_seconds, run)
        tool = self.registry.tool(
            call.agent_name, call.tool_name, turn=turn_of(call), limit=limit, cancellation=cancellation
        )
        if call.tool_name != STEP_TOOL:
            patience = OpenWait(limit(bound), cancellation)
            self.contexts.workdirs.open(call.agent_name, call.instance_key, patience)
        return tool

    def _plan_for(self, call: ToolCall, tool: RegisteredTool) -> Plan:
        plan = self._common(call.agent_name, call.tool_name)
        if plan is not None and plan.tool is tool:
            return plan
        return self._plan_of(call.agent_name, call.tool_name, tool, self._stamp)

    def _failing(self, call: ToolCall, bound: BoundTool, error: BaseException) -> Plan:
        """Return the plan of a call whose tool cannot be used: its handler raises the error."""

        def fail(ctx: Any, arguments: JsonObject) -> Any:
            raise error

        tool = RegisteredTool(bound, fail, compile_schema(None), is_async=False)
        return replace(self._plan_of(call.agent_name, call.tool_name, tool, self._stamp), handler=fail)

    def _limited(self, plan: Plan, run: Run) -> Plan:
        """Return the plan of one call, which may have a time limit of its own.

        Raises:
            ToolTimeoutError: nothing is left of it.
        """
        if plan.takes_job:
            return plan
        limit = self.contexts.limit_seconds(run, plan.tool.bound)
        if limit == plan.limit_seconds:
            return plan
        return replace(
            plan, limit_seconds=limit, handler=self._handler(plan.tool, limit, is_turn=plan.is_turn)
        )

    def _handler(
        self, tool: RegisteredTool, limit_seconds: float, *, is_turn: bool = False
    ) -> Callable[[Any, JsonObject], Any]:
        if is_turn:
            return self._turn_handler(tool)
        if tool.bound.is_v1:
            return self.contexts.older_handler(tool, limit_seconds)
        if isinstance(tool.handler, IsolatedTool):
            return tool.handler.handler(limit_seconds)
        return _waiting(tool.handler) if tool.only_waits else tool.handler

    def _common(self, agent: str, name: str) -> Plan | None:
        """Return the plan that all calls of a tool have; ``None`` if each has its own, or it is not loaded.

        It is made again when extensions have put middlewares around calls, or listen to them, since.
        """
        plan, stamp = self._plans.get((agent, name)), self._stamp
        if plan is not None and plan.stamp == stamp:
            return plan
        tool = self.registry.ready(agent, name)
        if tool is None or not self._is_common(agent, name, tool):
            return None  # not remembered, since models make names up
        plan = self._plans[agent, name] = self._plan_of(agent, name, tool, stamp)
        return plan

    def _is_common(self, agent: str, name: str, tool: RegisteredTool) -> bool:
        if name in EVENT_TOOLS:
            return True
        registry = self.registry
        if registry.bound(agent, name) is not tool.bound:
            return False
        # the guard logs each call of a tool that only an open policy permits
        is_system = tool.bound.tool.name == SYSTEM_TOOL
        return is_system or not registry.is_open or registry.is_offered(agent, name)

    def _plan_of(self, agent: str, name: str, tool: RegisteredTool, stamp: Stamp) -> Plan:
        bound, pipelines = tool.bound, self.pipelines
        limit_seconds = self.contexts.longest_seconds(bound)
        if name == STEP_TOOL:
            # its trips to Redis do not count as waits of the bundle's code
            detector = self._detectors.setdefault((agent, name), SlowToolDetector(SHORT_SECONDS))
        else:
            detector = self.detector(agent, name)
        is_turn = name in EVENT_TOOLS
        handler = self._handler(tool, limit_seconds, is_turn=is_turn)
        plan = partial(Plan, tool, handler, limit_seconds, detector, stamp, self.runner)
        if name == STEP_TOOL:
            return plan(takes_job=True, needs_mark=self.registry.is_extended(agent))
        if is_turn:
            return plan(pipelines.layers(agent, "turn"), older=pipelines.older_turns(agent), is_turn=True)
        if bound.tool.name == SYSTEM_TOOL:  # extensions have nothing to do with it
            return plan()
        is_heard = self.events.has(agent, TOOL_CALLED) or self.events.has(agent, TOOL_COMPLETED)
        return plan(
            pipelines.layers(agent, "toolCall"),
            older=pipelines.older(agent),
            is_heard=is_heard,
            asks=self.endings.suspension.asks(bound),
            is_isolated=isinstance(tool.handler, IsolatedTool),
        )

    def _turn_handler(self, tool: RegisteredTool) -> Callable[[PlainContext, JsonObject], Any]:
        """Return the handler of an agent for its plan: it takes an AgentContext."""
        handler: Any = tool.handler

        async def handle_on_loop(ctx: PlainContext, arguments: JsonObject) -> Any:
            is_known = self.contexts.knows(ctx.agent_name, ctx.instance_key)
            whole = whole_of(ctx) if is_known else await beside_loop(partial(whole_of, ctx), on_new_thread)
            return await handler(whole, arguments)

        def handle(ctx: PlainContext, arguments: JsonObject) -> Any:
            return handler(whole_of(ctx), arguments)

        return handle_on_loop if tool.is_async else handle


def _waiting(handler: Callable[[Any, JsonObject], Any]) -> Callable[[PlainContext, JsonObject], Any]:
    """Return an async handler that needs no slot, as it does nothing but wait."""

    async def handle(ctx: PlainContext, arguments: JsonObject) -> Any:
        async with waits_of(ctx).without_slot(Wait.HANDLER, is_async=True):
            return await handler(ctx, arguments)

    return handle
