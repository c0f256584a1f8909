"""The middlewares of the agents that a worker serves."""

from collections.abc import Callable
from typing import Any, get_args

from goondan_tasks.extension_api import Middleware, Point
from workers.turns.pipeline import Layer, Ranks, function_name, require_function
from workers.v1.chains import EXEC, V1Chains, exec_middleware, require_point


class AgentPipelines:
    """The layers of each agent's three onions, the outermost first.

    ``v1`` has the older version's functions that run before and after an onion. What older extensions put
    around tool calls is a layer like any other (DESIGN §6).
    """

    def __init__(self) -> None:
        self.ranks: Ranks[Point, Layer] = Ranks()
        self.v1 = V1Chains()

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

    def wrap(
        self,
        agent: str,
        point: str,
        function: Callable[[Any, Any], Any],
        *,
        extension: str,
        priority: int = 0,
        name: str | None = None,
    ) -> None:
        """Put a function of the older version around ``toolCall.exec``; lower priorities are further out.

        Raises:
            ValueError: it is another point.
            TypeError: it is not a function of ``(ctx, next)``, or its priority is not an integer.
        """
        require_point(point, (EXEC,))
        require_function(function, 2, "(ctx, next); next(ctx) runs the next layer")
        layer = Layer(function_name(extension, function, name), exec_middleware(function))
        self.ranks.add(agent, "toolCall", layer, priority)
        self.v1.with_calls |= {agent}

    def clear(self, agent: str) -> None:
        for point in get_args(Point):
            self.ranks.clear(agent, point)
        self.v1.clear(agent)
