"""What a run is given to reach tools and other agents."""

from dataclasses import dataclass

from goondan_tasks.agent_api import ToolCaller
from goondan_tasks.agents.handoff import Asker, RepeatableIds
from goondan_tasks.run import Run
from goondan_tasks.runtime_api import AgentRuntime
from workers.agent_runtime import AsyncRuntime, BlockingRuntime, RuntimeParts, Swarm
from workers.handoffs import Handoffs
from workers.places import StepOut
from workers.tool_caller import AsyncToolCaller, BlockingToolCaller, CallerParts
from workers.waits import Waits


@dataclass(frozen=True, slots=True)
class Colleagues:
    """The swarm as one worker process reaches it."""

    swarm: Swarm
    handoffs: Handoffs

    def runtime(self, run: Run, step_out: StepOut, *, is_async: bool) -> AgentRuntime:
        """Make the ``ctx.runtime`` of a tool's run."""
        parts = RuntimeParts(self.swarm, self.handoffs, _asker(run), Waits(step_out))
        return AsyncRuntime(parts) if is_async else BlockingRuntime(parts)

    def agent_means(self, run: Run, step_out: StepOut, *, is_async: bool) -> tuple[AgentRuntime, ToolCaller]:
        """Make what an agent acts with: its ``ctx.runtime``, and its tools."""
        asker, waits = _asker(run), Waits(step_out)
        runtime = RuntimeParts(self.swarm, self.handoffs, asker, waits)
        tools = CallerParts(self.handoffs, asker, waits)
        if is_async:
            return AsyncRuntime(runtime), AsyncToolCaller(tools)
        return BlockingRuntime(runtime), BlockingToolCaller(tools)


def _asker(run: Run) -> Asker:
    return Asker.of(run.id, run.call, RepeatableIds(run.id))
