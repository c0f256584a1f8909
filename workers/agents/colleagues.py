"""What a run is given to reach tools and other agents."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from goondan_tasks.agent_api import ToolCaller
from goondan_tasks.calls import Run
from goondan_tasks.handoff import Asker, RepeatableIds
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import AgentRuntime
from workers.agents.agent_runtime import AsyncRuntime, BlockingRuntime, RuntimeParts, Swarm
from workers.agents.agent_steps import AgentTurn, AsyncStep, BlockingStep
from workers.agents.handoffs import Handoffs
from workers.agents.tool_caller import AsyncToolCaller, BlockingToolCaller, CallerParts
from workers.agents.waits import Waits
from workers.cancellation import Cancellation
from workers.instances.service import InstanceService
from workers.turns.steps import Steps

StepsNow = Callable[[], Steps]


@dataclass(frozen=True, slots=True)
class Means:
    """What one run reaches others with."""

    runtime: AgentRuntime
    #: the agent's own tools; a tool has no use for them
    tools: ToolCaller
    #: the next Step of an agent's Turn
    step: Callable[[JsonObject | None], BlockingStep | AsyncStep]


@dataclass(frozen=True, slots=True)
class Colleagues:
    """The swarm as one worker process reaches it."""

    swarm: Swarm
    handoffs: Handoffs
    desk: InstanceService
    #: opens the Steps of an agent's entry: of the revision that is active when one begins (000 §12.4)
    steps_now: StepsNow
    #: the revision that the runs, and the calls they make outside of Steps, belong to
    bundle_ref: str | None = None

    def means(
        self, run: Run, workdir: Path, waits: Waits, cancellation: Cancellation, *, is_async: bool
    ) -> Means:
        """Make the means of one run."""
        asker = Asker.of(run.id, run.call, RepeatableIds(_run_name(run)))
        parts = RuntimeParts(self.swarm, self.handoffs, self.desk, asker, waits, cancellation, workdir)
        tools = CallerParts(self.handoffs, asker, waits, cancellation, self.bundle_ref)
        turn = AgentTurn(run.call, run.attempt, self.steps_now)
        if is_async:
            caller = AsyncToolCaller(tools)
            return Means(AsyncRuntime(parts), caller, partial(AsyncStep, turn, tools=caller))
        blocking = BlockingToolCaller(tools)
        return Means(BlockingRuntime(parts), blocking, partial(BlockingStep, turn, tools=blocking))


def _run_name(run: Run) -> str:
    """Return what a run shares with the one that takes its place when its worker dies, but with no retry."""
    return f"{run.id} {run.retries}" if run.retries else run.id
