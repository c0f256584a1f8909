"""The contexts of runs: what the handler of a tool or an agent is given."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from time import time
from typing import Any, Protocol

from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.tool_api import AgentRuntime, ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.call_fields import followed_by, shown_id
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import HandoffError, ToolTimeoutError
from goondan_tasks.contract.messages import JsonObject, Message, assistant_message_wire, iso_time
from goondan_tasks.contract.names import callback_url
from workers.concurrency.event_loop import is_on_loop
from workers.instances.workdirs import InstanceWorkdirs, OpenWait
from workers.job import Job
from workers.plain_context import ContextServices, PlainContext
from workers.processes.confinement import Confinement
from workers.processes.programs import ProcessRunner
from workers.tools.registered_tool import RegisteredTool
from workers.v1.handlers import OlderContext, handler_of_older

_NOTHING: dict[str, Any] = {}


class AgentAccess(Protocol):
    """What runs reach of agents; see :class:`workers.thinking.agent_contexts.AgentContexts`."""

    def context(self, job: Job, services: ContextServices, workdir: Path, deadline: datetime) -> AgentContext:
        """Make the context of a Turn whose handler begins now."""

    def runtime(self, job: Job, services: ContextServices, workdir: Path, deadline: datetime) -> AgentRuntime:
        """Make the ``ctx.runtime`` of a tool's handler."""

    async def reply(self, run: Run, answer: Any) -> None:
        """Send the answer of a Turn to where its event came from, if its Connection says so."""

    def conversation(self, run: Run) -> Conversation | None:
        """Return the conversation with which a Turn begins; ``None`` unless the agent thinks. It may block.

        Raises:
            ConversationError: one of its files cannot be read.
            ToolError, OSError: the instance's directory cannot be opened.
        """


@dataclass(eq=False)
class ContextFactory:
    """Makes contexts for the runs of one workspace; without ``agents`` none can be reached."""

    workdirs: InstanceWorkdirs
    call_timeout_seconds: float
    older: OlderContext
    confinement: Confinement
    agents: AgentAccess | None = None
    public_url: str | None = None

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
        if not plan.is_turn:
            return self._tool_context(job, services, workdir, deadline)
        if self.agents is None:
            raise HandoffError("An agent is run by a worker only.")
        return self.agents.context(job, services, workdir, deadline)

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
            "runtime": self.agents is not None,
            "followed": followed_by(call, call_id) is not None,
            "callbackUrl": None if url is None else callback_url(url, call_id, token),
        }

    def older_handler(
        self, tool: RegisteredTool, limit_seconds: float
    ) -> Callable[[PlainContext, JsonObject], Any]:
        """Return the handler of a v1 tool for its plan: each call gets a context of its version."""
        return handler_of_older(tool, limit_seconds, self.older)

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
            emit=services.emit(job),
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
        if self.agents is None:
            return _NOTHING
        return {"_reach": cache(partial(self.agents.runtime, job, services, workdir, deadline))}


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
