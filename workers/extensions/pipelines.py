"""The middlewares of the agents that a worker serves."""

from collections.abc import Sequence
from typing import Any, get_args

from goondan_tasks.authoring.extension_api import Middleware, Point, ToolCallContext
from goondan_tasks.contract.calls import Run
from workers.turns.pipeline import (
    Core,
    Layer,
    MiddlewareServices,
    Ranks,
    compose,
    function_name,
    require_function,
)
from workers.v1.chains import V1Chains


class AgentPipelines:
    """The layers of each agent's three onions, the outermost first.

    ``v1`` has the older version's functions that run before and after an onion. What older extensions put
    around tool calls is a layer like any other (DESIGN §6).
    """

    def __init__(self) -> None:
        self.ranks: Ranks[Point, Layer] = Ranks()
        self.v1 = V1Chains(self.ranks)

    def layers(self, agent: str, point: Point) -> tuple[Layer, ...]:
        return self.ranks.of(agent, point)

    def register(
        self, agent: str, point: Point, middleware: Middleware, *, extension: str, priority: int = 0
    ) -> None:
        """Put a middleware of ``extension`` around ``point``; lower priorities are further out (DESIGN §6).

        Raises:
            ValueError: there is no such point.
            TypeError: it is not a function of ``(ctx)``, or its priority is not an integer.
        """
        if point not in get_args(Point):
            raise ValueError(f"there is no pipeline {point!r}; there are: {', '.join(get_args(Point))}")
        require_function(middleware, 1, "(ctx); ctx.next() runs the next layer")
        self.ranks.add(agent, point, Layer(function_name(extension, middleware), middleware), priority)

    def around_call(
        self, run: Run, services: MiddlewareServices, core: Core[Any]
    ) -> Core[ToolCallContext] | None:
        """Wrap ``core`` in what the agent's extensions have put around its tool calls, if there is any."""
        layers, older = self.layers(run.call.agent_name, "toolCall"), self.v1.around_call(run, services)
        if older is not None:
            return older.composed(layers, core)
        if not layers:
            return None
        return compose(layers, core, on_thread=services.on_thread, shape=services.shape)

    def older(self, agent: str) -> Sequence[Layer] | None:
        """Return the older functions before and after an agent's tool calls; ``None`` if it has none.

        There may be none of them, but older functions among the middlewares.
        """
        if agent not in self.v1.with_calls:
            return None
        return self.v1.mutators(agent, "toolCall.pre", "toolCall.post")

    def older_turns(self, agent: str) -> Sequence[Layer] | None:
        """Return the older functions before and after an agent's Turns; ``None`` if it has none."""
        return self.v1.mutators(agent, "turn.pre", "turn.post") or None

    def clear(self, agent: str) -> None:
        for point in get_args(Point):
            self.ranks.clear(agent, point)
        self.v1.clear(agent)
