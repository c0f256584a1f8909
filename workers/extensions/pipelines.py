"""The middlewares of the agents that a worker serves."""

from collections.abc import Callable
from typing import Any, get_args

from goondan_tasks.extension_api import Middleware, Point
from workers.extensions.ranks import Ranks, function_name, require_function
from workers.turns.pipeline import Layer
from workers.v1.chains import V1Chains
from workers.v1.points import require_exec
from workers.v1.tool_calls import exec_middleware


class Pipelines:
    """The layers of each agent's three onions; without any, a pipeline is its core alone.

    ``v1`` has what extensions of the older version put before and behind them; what these put around tool
    calls is a layer as any other (DESIGN §6).
    """

    def __init__(self) -> None:
        self._ranks: Ranks[Point, Layer] = Ranks()
        self.v1 = V1Chains()

    def layers(self, agent: str, point: Point) -> tuple[Layer, ...]:
        """Return an agent's layers, the outermost first."""
        return self._ranks.of(agent, point)

    def register(
        self, agent: str, point: Point, middleware: Middleware, *, extension: str, priority: int = 0
    ) -> None:
        """Put a middleware of ``extension`` around ``point``; lower priorities are further out (DESIGN §6).

        Raises:
            ValueError: there is no such point.
            TypeError: it is no function of ``(ctx)``, or its priority no whole number.
        """
        if point not in get_args(Point):
            raise ValueError(f"there is no pipeline {point!r}; there are: {', '.join(get_args(Point))}")
        require_function(middleware, 1, "(ctx); ctx.next() goes on to what is inside of it")
        self._ranks.add(agent, point, Layer(function_name(extension, middleware), middleware), priority)

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
            TypeError: it is no function of ``(ctx, next)``, or its priority no whole number.
        """
        require_exec(point)
        require_function(function, 2, "(ctx, next); next(ctx) goes on to what is inside of it")
        layer = Layer(function_name(extension, function, name), exec_middleware(function))
        self._ranks.add(agent, "toolCall", layer, priority)
        self.v1.with_calls |= {agent}

    def clear(self, agent: str) -> None:
        """Take all of an agent's middlewares away."""
        for point in get_args(Point):
            self._ranks.clear(agent, point)
        self.v1.clear(agent)
