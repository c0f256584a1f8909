"""The contexts of runs: what the handler of a tool or an agent is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from time import time
from typing import Any

from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import AgentRuntime, ToolContext
from goondan_tasks.authoring.v1_api import V1ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.call_fields import shown_id
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation, ConversationFiles
from goondan_tasks.contract.errors import HandoffError, ToolTimeoutError
from goondan_tasks.contract.events import event_of, is_event
from goondan_tasks.contract.messages import JsonObject, Message, assistant_message_wire, iso_time
from goondan_tasks.contract.names import STEP_TOOL, callback_url
from workers.agents.call_services import CallServices, SwarmServices
from workers.agents.waits import Waits
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import RunOnThread, is_on_loop
from workers.concurrency.slots import KeptSlot, ReleaseSlot
from workers.concurrency.threads import on_new_thread
from workers.instances.workdirs import InstanceWorkdirs, OpenWait
from workers.kept_lines import logger_of
from workers.plain_context import PlainContext
from workers.processes.confinement import Confinement
from workers.processes.programs import ProcessRunner
from workers.progress_reporter import ProgressReporter
from workers.thinking.turn import Thinking
from workers.tools.registered_tool import RegisteredTool
from workers.turns.turns import TurnState
from workers.v1.handlers import OlderContext, handler_of_older, let_go

_NOTHING: dict[str, Any] = {}


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunServices:
    """The parts of the worker that a run uses."""

    cancellation: Cancellation
    reporter: ProgressReporter
    #: releases the run's slot while it waits
    release_slot: ReleaseSlot = KeptSlot
    #: runs blocking work after the run has moved to the event loop
    on_thread: RunOnThread = on_new_thread
    #: called when the handler begins
    on_begin: Callable[[], object] = _nothing
    #: the token of the run's claim
    claim_token: str = ""
    #: the state of the Turn, if the run handles an event
    turn: TurnState = field(default_factory=TurnState)

    def only_waiting(self) -> Waits:
        """Return the waits of a run that does nothing but wait."""
        return Waits(self.release_slot, lambda: self.cancellation.is_over)

    def waits(self, deadline: datetime) -> Waits:
        """Return the waits of a run that must end at ``deadline``."""
        return Waits(self.release_slot, lambda: self.cancellation.is_over or datetime.now(UTC) >= deadline)


@dataclass(eq=False)
class ContextFactory:
    """Makes contexts for the runs of one workspace; without ``swarm_services`` no agent can be reached."""

    workdirs: InstanceWorkdirs
    call_timeout_seconds: float
    older: OlderContext
    confinement: Confinement
    swarm_services: SwarmServices | None = None
    public_url: str | None = None
    thinking: Thinking | None = None

    def limit_seconds(self, run: Run, bound: BoundTool) -> float:
        """Return how long the handler may run: the smaller limit of export and caller, or the default.

        The caller's limit counts from the first run of a call that is retried.

        Raises:
            ToolTimeoutError: nothing is left of it.
        """
        left = _left_of(run)
        limit = self.longest_seconds(bound) if bound.export.timeout_seconds or left is None else left
        limit = limit if left is None else min(limit, left)
        if limit <= 0:
            raise ToolTimeoutError("The call's time limit was over before it could be tried again.")
        return limit

    def longest_seconds(self, bound: BoundTool) -> float:
        """Return how long a tool's handler may run if the caller sets no limit."""
        return bound.export.timeout_seconds or self.call_timeout_seconds

    def knows(self, agent: str, instance_key: str) -> bool:
        """Return whether the table of instances was asked about this one a moment ago."""
        return self.workdirs.knows(agent, instance_key)

    def make(
        self,
        run: Run,
        tool: RegisteredTool,
        services: RunServices,
        *,
        limit_seconds: float,
        around: ToolCallContext | None = None,
    ) -> Any:
        """Make the ToolContext or AgentContext of a run that begins now, and its workdir on first use.

        A v1 tool gets a V1ToolContext (002 §4.3), made with the context of the functions ``around`` it.
        Opening a Step for a producer takes only the call.

        It may block as long as :meth:`InstanceWorkdirs.open` does.

        Raises:
            ToolError, OSError: the workdir cannot be opened, or the event is not valid.
        """
        if run.call.tool_name == STEP_TOOL:
            return run.call
        call, patience = run.call, OpenWait(limit_seconds, services.cancellation)
        deadline = datetime.now(UTC) + timedelta(seconds=limit_seconds)
        workdir = self.workdirs.open(call.agent_name, call.instance_key, patience)
        if is_event(call):
            return self._agent_context(run, services, workdir, deadline=deadline, is_async=tool.is_async)
        context = self._tool_context(run, tool, services, workdir, deadline=deadline)
        if tool.bound.is_v1:
            return self.older(tool.bound, call, context, around)
        return context

    def wire(
        self, call: JsonObject, call_id: str, token: str, queued_at: float, *, limit_seconds: float
    ) -> JsonObject:
        """Return the context of a plain call that begins now, as ``machine/node/context.mjs`` reads it.

        Raises:
            ToolError, OSError: there is no way to a workdir.
        """
        turn_id = call["turnId"]
        opened = self.workdirs.open_on_loop if is_on_loop() else self.workdirs.open
        workdir = opened(call["agentName"], call["instanceKey"])
        url = self.public_url
        return {
            "agentName": call["agentName"],
            "instanceKey": call["instanceKey"],
            "turnId": turn_id,
            "traceId": call["traceId"],
            "toolCallId": shown_id(call),
            "message": _message_of(call, queued_at),
            "workdir": str(workdir),
            "deadline": (time() + limit_seconds) * 1000,
            "runtime": self.swarm_services is not None,
            "callbackUrl": None if url is None else callback_url(url, call_id, token),
        }

    def conversation(self, run: Run) -> Conversation | None:
        """Return the conversation with which a Turn begins; ``None`` unless the agent thinks. It may block.

        Raises:
            ConversationError: one of its files cannot be read.
            ToolError, OSError: the instance's directory cannot be opened.
        """
        call = run.call
        if self.thinking is None or not self.thinking.bundle.agents[call.agent_name].thinks:
            return None
        self.workdirs.open(call.agent_name, call.instance_key)
        directory = self.workdirs.directory(call.instance_key)
        files = ConversationFiles.of(directory, call.agent_name)
        return files.begin(call.turn_id, claimed_at=run.claimed_at, now=run.clock())

    def older_handler(
        self, tool: RegisteredTool, limit_seconds: float
    ) -> Callable[[PlainContext, JsonObject], Any]:
        """Return the handler of a v1 tool for its plan: each call gets a context of its version."""
        return handler_of_older(tool, limit_seconds, self.older)

    def let_go(self, context: Any) -> None:
        """End what the context has begun for a run that has ended."""
        if isinstance(context, V1ToolContext):
            let_go(context)

    def _agent_context(
        self, run: Run, services: RunServices, workdir: Path, *, deadline: datetime, is_async: bool
    ) -> AgentContext:
        call = run.call
        if self.swarm_services is None:
            raise HandoffError("An agent is run by a worker only.")
        waits = services.waits(deadline)
        call_services = self.swarm_services.for_run(
            run,
            workdir,
            waits,
            services.cancellation,
            is_async=is_async,
            state=services.turn,
        )
        return AgentContext(
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            trace_id=call.trace_id,
            correlation_id=call.correlation_id,
            event=event_of(call, run.clock()),
            workdir=workdir,
            logger=logger_of(run),
            runtime=call_services.runtime,
            tools=call_services.tools,
            progress=services.reporter,
            auth=call.auth,
            origin=call.origin,
            deadline=deadline,
            _is_cancelled=services.cancellation.is_set,
            _step=call_services.step,
            **self._model(run, services, workdir, call_services),
        )

    def _model(
        self, run: Run, services: RunServices, workdir: Path, call_services: CallServices
    ) -> dict[str, Any]:
        """Return the prompt and the model of an agent, as fields of its context."""
        thinking, call = self.thinking, run.call
        if thinking is None:
            return {}
        names = {
            "agentName": call.agent_name,
            "instanceKey": call.instance_key,
            "turnId": call.turn_id,
            "workdir": str(workdir),
        }
        if call_services.tools.is_async and thinking.bundle.agents[call.agent_name].spec.configuration:
            services.turn.ask_model = partial(thinking.ask, workdir, call_services.tools, services.turn)
        return {
            "prompt": thinking.prompt(call.agent_name, names),
            "model": thinking.model(call.agent_name),
            "_think": partial(thinking.think, run=run, tools=call_services.tools, state=services.turn),
        }

    def _tool_context(
        self, run: Run, tool: RegisteredTool, services: RunServices, workdir: Path, *, deadline: datetime
    ) -> ToolContext:
        call, cancellation = run.call, services.cancellation
        environment = partial(self.confinement.environment, call.agent_name, tool.bound)
        sandbox = self.confinement.sandbox(tool.bound, workdir)
        return ToolContext(
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            trace_id=call.trace_id,
            tool_call_id=call.shown_id,
            message=run.message,
            workdir=workdir,
            logger=logger_of(run),
            run_process=ProcessRunner(workdir, deadline, cancellation, environment, sandbox),
            progress=services.reporter,
            deadline=deadline,
            _is_cancelled=cancellation.is_set,
            **self._reach(run, workdir, services, deadline=deadline, is_async=tool.is_async),
            **self._callback(run, services),
        )

    def _callback(self, run: Run, services: RunServices) -> dict[str, Any]:
        if self.public_url is None:
            return _NOTHING
        return {"_callback_url": partial(callback_url, self.public_url, run.id, services.claim_token)}

    def _reach(
        self, run: Run, workdir: Path, services: RunServices, *, deadline: datetime, is_async: bool
    ) -> dict[str, Any]:
        """Return the field that makes ``ctx.runtime`` on first use: few tools use it."""
        swarm_services = self.swarm_services
        if swarm_services is None:
            return _NOTHING

        @cache
        def make() -> AgentRuntime:
            waits = services.waits(deadline)
            own = swarm_services.for_run(run, workdir, waits, services.cancellation, is_async=is_async)
            return own.runtime

        return {"_reach": make}


def _message_of(call: JsonObject, queued_at: float) -> JsonObject:
    """Return the message that holds a plain call, as :attr:`Run.message` makes it."""
    if call.get("message") is not None:
        return Message.from_wire(call["message"]).to_wire()
    said_in = call.get("stepId") or call["turnId"]
    now = iso_time(queued_at)
    return assistant_message_wire(shown_id(call), call["toolName"], call["args"], said_in, now)


def _left_of(run: Run) -> float | None:
    limit = run.call.timeout_seconds
    if limit is None or run.begun_at is None:
        return limit
    return limit - (run.clock() - run.begun_at) / 1000
