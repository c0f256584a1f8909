"""What runs reach of agents: the contexts of Turns, and ``ctx.runtime`` of tools."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.handoff import Asker, RepeatableIds
from goondan_tasks.authoring.tool_api import AgentRuntime
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation, ConversationFiles
from goondan_tasks.contract.events import event_of
from workers.agents.call_services import (
    AsyncRuntime,
    AsyncToolCaller,
    BlockingRuntime,
    BlockingToolCaller,
    Swarm,
)
from workers.agents.entry_steps import AgentTurn, AsyncEntryStep, BlockingEntryStep, StepsNow
from workers.agents.handoffs import Handoffs
from workers.agents.replies import Replies
from workers.cancellation import Cancellation
from workers.concurrency.waits import Waits
from workers.instances.service import InstanceService
from workers.instances.workdirs import InstanceWorkdirs
from workers.job import Job
from workers.plain_context import ContextServices
from workers.thinking.turn import Thinking

#: what callers of tools and agents begin with
Reach = tuple[Handoffs, Asker, Waits, Cancellation]


@dataclass(frozen=True, slots=True)
class AgentContexts:
    """Makes what the runs of one revision reach of agents."""

    swarm: Swarm
    handoffs: Handoffs
    instances: InstanceService
    #: returns the Steps of the active revision, in which an entry's next Step opens (000 §12.4)
    steps_now: StepsNow
    #: the revision of the runs, and of their calls outside of Steps
    bundle_ref: str | None
    thinking: Thinking
    workdirs: InstanceWorkdirs
    replies: Replies

    def context(self, job: Job, services: ContextServices, workdir: Path, deadline: datetime) -> AgentContext:
        """Make the context of a Turn whose handler begins now."""
        run, call, state = job.claim.run, job.claim.run.call, job.ensure_turn_state()
        reach = self._reach(job, services, deadline)
        tools = (AsyncToolCaller if _is_async(job) else BlockingToolCaller)(*reach, self.bundle_ref)
        at_once = self.bundle_ref is None and not self.steps_now().asks_redis(call.agent_name)
        turn = AgentTurn(call, run.attempt, self.steps_now, state, prepares_at_once=at_once)
        step: Any = AsyncEntryStep if _is_async(job) else BlockingEntryStep
        return AgentContext(
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            trace_id=call.trace_id,
            correlation_id=call.correlation_id,
            event=event_of(call, run.clock()),
            workdir=workdir,
            logger=services.logger(job),
            runtime=self._runtime(job, reach, workdir),
            tools=tools,
            progress=services.progress(job),
            auth=call.auth,
            origin=call.origin,
            deadline=deadline,
            _is_cancelled=job.ensure_cancellation().is_set,
            _step=partial(step, turn, tools=tools),
            **self._model(job, workdir, tools),
        )

    def runtime(self, job: Job, services: ContextServices, workdir: Path, deadline: datetime) -> AgentRuntime:
        """Make the ``ctx.runtime`` of a tool's handler."""
        return self._runtime(job, self._reach(job, services, deadline), workdir)

    def conversation(self, run: Run) -> Conversation | None:
        """Return the conversation with which a Turn begins; ``None`` unless the agent thinks. It may block.

        Raises:
            ConversationError: one of its files cannot be read.
            ToolError, OSError: the instance's directory cannot be opened.
        """
        call = run.call
        if not self.thinking.bundle.agents[call.agent_name].thinks:
            return None
        self.workdirs.open(call.agent_name, call.instance_key)
        files = ConversationFiles.of(self.workdirs.directory(call.instance_key), call.agent_name)
        return files.begin(call.turn_id, claimed_at=run.claimed_at, now=run.clock())

    async def reply(self, run: Run, answer: Any) -> None:
        """Send the answer of a Turn to where its event came from, if its Connection says so."""
        await self.replies.send(run, answer)

    def _reach(self, job: Job, services: ContextServices, deadline: datetime) -> Reach:
        run, cancellation = job.claim.run, job.ensure_cancellation()
        # if a worker dies, the run that replaces its run makes the same ids; a retry makes others
        name = f"{run.id} {run.retries}" if run.retries else run.id
        waits = Waits(
            partial(services.release_slot, job), lambda: cancellation.is_over or datetime.now(UTC) >= deadline
        )
        return self.handoffs, Asker.of(run.id, run.call, RepeatableIds(name)), waits, cancellation

    def _runtime(self, job: Job, reach: Reach, workdir: Path) -> AgentRuntime:
        kind = AsyncRuntime if _is_async(job) else BlockingRuntime
        return kind(*reach, self.swarm, self.instances, workdir)

    def _model(self, job: Job, workdir: Path, tools: AsyncToolCaller | BlockingToolCaller) -> dict[str, Any]:
        """Return the prompt and the model of an agent, as fields of its context."""
        thinking, call, state = self.thinking, job.claim.run.call, job.ensure_turn_state()
        names = {
            "agentName": call.agent_name,
            "instanceKey": call.instance_key,
            "turnId": call.turn_id,
            "workdir": str(workdir),
        }
        if tools.is_async and thinking.bundle.agents[call.agent_name].spec.configuration:
            state.ask_model = partial(thinking.ask, workdir, tools, state)
        return {
            "prompt": thinking.prompt(call.agent_name, names),
            "model": thinking.model(call.agent_name),
            "_think": partial(thinking.think, run=job.claim.run, tools=tools, state=state),
        }


def _is_async(job: Job) -> bool:
    return job.planned.tool.is_async
