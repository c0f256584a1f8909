"""The contexts of runs: what the handler of a tool or an agent is given."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from time import time
from typing import Any

from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.tool_api import AgentRuntime, ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.call_fields import shown_id
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation, ConversationFiles
from goondan_tasks.contract.errors import HandoffError, ToolTimeoutError
from goondan_tasks.contract.events import event_of
from goondan_tasks.contract.messages import JsonObject, Message, assistant_message_wire, iso_time
from goondan_tasks.contract.names import callback_url
from workers.agents.call_services import CallServices, SwarmServices
from workers.concurrency.event_loop import is_on_loop
from workers.concurrency.waits import Waits
from workers.instances.workdirs import InstanceWorkdirs, OpenWait
from workers.job import Job
from workers.plain_context import ContextServices, PlainContext
from workers.processes.confinement import Confinement
from workers.processes.programs import ProcessRunner
from workers.thinking.turn import Thinking
from workers.tools.registered_tool import RegisteredTool
from workers.v1.handlers import OlderContext, handler_of_older

_NOTHING: dict[str, Any] = {}


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

    def make(self, job: Job, services: ContextServices) -> Any:
        """Make the ToolContext or AgentContext of a call whose handler begins now, and its workdir.

        It may block as long as :meth:`InstanceWorkdirs.open` does.

        Raises:
            ToolError, OSError: the workdir cannot be opened, or the event is not valid.
        """
        run, plan, limit_seconds = job.claim.run, job.planned, job.seconds_left
        patience = OpenWait(limit_seconds, job.cancellation)
        workdir = self.workdirs.open(job.agent, run.call.instance_key, patience)
        deadline = datetime.now(UTC) + timedelta(seconds=limit_seconds)
        make = self._agent_context if plan.is_turn else self._tool_context
        return make(job, services, workdir, deadline)

    def wire(
        self, call: JsonObject, call_id: str, token: str, queued_at: float, *, limit_seconds: float
    ) -> JsonObject:
        """Return the context of a call that begins now, as ``machine/node/context.mjs`` reads it.

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

    def _agent_context(
        self, job: Job, services: ContextServices, workdir: Path, deadline: datetime
    ) -> AgentContext:
        run, call, cancellation = job.claim.run, job.claim.run.call, job.ensure_cancellation()
        if self.swarm_services is None:
            raise HandoffError("An agent is run by a worker only.")
        call_services = self.swarm_services.for_run(
            run,
            workdir,
            _waits(job, services, deadline),
            cancellation,
            is_async=job.planned.tool.is_async,
            state=job.ensure_turn_state(),
        )
        return AgentContext(
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            trace_id=call.trace_id,
            correlation_id=call.correlation_id,
            event=event_of(call, run.clock()),
            workdir=workdir,
            logger=services.logger(job),
            runtime=call_services.runtime,
            tools=call_services.tools,
            progress=services.progress(job),
            auth=call.auth,
            origin=call.origin,
            deadline=deadline,
            _is_cancelled=cancellation.is_set,
            _step=call_services.step,
            **self._model(job, workdir, call_services),
        )

    def _model(self, job: Job, workdir: Path, call_services: CallServices) -> dict[str, Any]:
        """Return the prompt and the model of an agent, as fields of its context."""
        thinking, call, state = self.thinking, job.claim.run.call, job.ensure_turn_state()
        if thinking is None:
            return {}
        names = {
            "agentName": call.agent_name,
            "instanceKey": call.instance_key,
            "turnId": call.turn_id,
            "workdir": str(workdir),
        }
        if call_services.tools.is_async and thinking.bundle.agents[call.agent_name].spec.configuration:
            state.ask_model = partial(thinking.ask, workdir, call_services.tools, state)
        return {
            "prompt": thinking.prompt(call.agent_name, names),
            "model": thinking.model(call.agent_name),
            "_think": partial(thinking.think, run=job.claim.run, tools=call_services.tools, state=state),
        }

    def _tool_context(
        self, job: Job, services: ContextServices, workdir: Path, deadline: datetime
    ) -> ToolContext:
        run, call, tool = job.claim.run, job.claim.run.call, job.planned.tool
        cancellation = job.ensure_cancellation()
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
            logger=services.logger(job),
            run_process=ProcessRunner(workdir, deadline, cancellation, environment, sandbox),
            progress=services.progress(job),
            deadline=deadline,
            _is_cancelled=cancellation.is_set,
            **self._reach(job, services, workdir, deadline),
            **self._callback(job),
        )

    def _callback(self, job: Job) -> dict[str, Any]:
        if self.public_url is None:
            return _NOTHING
        return {"_callback_url": partial(callback_url, self.public_url, job.id, job.token)}

    def _reach(
        self, job: Job, services: ContextServices, workdir: Path, deadline: datetime
    ) -> dict[str, Any]:
        """Return the field that makes ``ctx.runtime`` on first use: few tools use it."""
        swarm_services = self.swarm_services
        if swarm_services is None:
            return _NOTHING

        @cache
        def make() -> AgentRuntime:
            waits, cancellation = _waits(job, services, deadline), job.ensure_cancellation()
            is_async = job.planned.tool.is_async
            own = swarm_services.for_run(job.claim.run, workdir, waits, cancellation, is_async=is_async)
            return own.runtime

        return {"_reach": make}


def _waits(job: Job, services: ContextServices, deadline: datetime) -> Waits:
    """Return the waits of a run that must end at ``deadline``."""
    cancellation = job.ensure_cancellation()
    return Waits(
        partial(services.release_slot, job), lambda: cancellation.is_over or datetime.now(UTC) >= deadline
    )


def _message_of(call: JsonObject, queued_at: float) -> JsonObject:
    """Return the message that holds a call, as :attr:`Run.message` makes it."""
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
