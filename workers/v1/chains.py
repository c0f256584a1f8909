"""The functions of the older version's extensions that stand before and behind calls, Steps and Turns."""

from collections.abc import Callable
from functools import partial
from typing import Any

from goondan_tasks.calls import Run
from goondan_tasks.extension_api import StepContext
from goondan_tasks.messages import ToolCall
from workers.extensions.ranks import Ranks, function_name, require_function
from workers.turns.mutators import Mutator
from workers.v1.pipeline_contexts import V1Contexts
from workers.v1.points import BEFORE_STEP, MUTATOR_POINTS, MutatorPoint, mutator_point
from workers.v1.steps import StepWay
from workers.v1.tool_calls import CallWay, WayMeans
from workers.v1.turns import TurnWay


class V1Chains:
    """The mutators of every agent."""

    def __init__(self) -> None:
        #: makes what they are called with; whoever puts a revision together sets it
        self.made_by: V1Contexts | None = None
        self._ranks: Ranks[MutatorPoint, Mutator] = Ranks()
        #: the agents that have anything of the older version around their tool calls, the onion included
        self.with_calls: frozenset[str] = frozenset()

    def mutators(self, agent: str, *points: MutatorPoint) -> tuple[Mutator, ...]:
        """Return an agent's mutators at some points, in the order in which they are called."""
        return tuple(mutator for point in points for mutator in self._ranks.of(agent, point))

    def mutate(
        self,
        agent: str,
        point: str,
        function: Callable[[Any], Any],
        *,
        extension: str,
        priority: int = 0,
        name: str | None = None,
    ) -> None:
        """Let the context of ``point`` pass through a function of ``extension``; lower priorities come first.

        Raises:
            ValueError: there is no such point here.
            TypeError: it is no function of ``(ctx)``, or its priority no whole number.
        """
        where = mutator_point(point)
        require_function(function, 1, "(ctx), and returns it")
        mutator = Mutator(function_name(extension, function, name), function, extension)
        self._ranks.add(agent, where, mutator, priority)
        if where in ("toolCall.pre", "toolCall.post"):
            self.with_calls |= {agent}

    def clear(self, agent: str) -> None:
        """Take all of an agent's away."""
        for point in MUTATOR_POINTS:
            self._ranks.clear(agent, point)
        self.with_calls -= {agent}

    def call_way(self, run: Run, means: WayMeans) -> CallWay:
        """Return the way of a tool call; see :class:`CallWay`."""
        agent = run.call.agent_name
        pre, post = self.mutators(agent, "toolCall.pre"), self.mutators(agent, "toolCall.post")
        return CallWay(run, self.contexts(), pre, post, means)

    def step_way(self, call: ToolCall, step: StepContext) -> StepWay | None:
        """Return the way of a Step that ``call`` opens, unless nothing stands there."""
        agent = call.agent_name
        before, after = self.mutators(agent, *BEFORE_STEP), self.mutators(agent, "step.post")
        if not (before or after):
            return None
        contexts = self.contexts()
        make = partial(contexts.of_step, call, step_id=step.step_id, index=step.step_index)
        return StepWay(make, partial(contexts.item, agent), before, after)

    def turn_way(self, call: ToolCall) -> TurnWay | None:
        """Return the way of the Turn in which an agent handles ``call``, unless nothing stands there."""
        pre, post = self.mutators(call.agent_name, "turn.pre"), self.mutators(call.agent_name, "turn.post")
        return TurnWay(call, self.contexts(), pre, post) if pre or post else None

    def contexts(self) -> V1Contexts:
        """Return what makes the contexts that they are called with.

        Raises:
            RuntimeError: nothing runs calls yet.
        """
        if self.made_by is None:
            raise RuntimeError("the worker has not been put together yet")
        return self.made_by
