"""The middlewares of the agents that a worker serves."""

from bisect import insort
from collections import defaultdict
from dataclasses import dataclass
from typing import get_args

from goondan_tasks.entry import takes
from goondan_tasks.extension_api import Middleware, Point
from workers.pipeline import Layer


@dataclass(frozen=True, slots=True)
class _Placed:
    priority: int
    layer: Layer


class Pipelines:
    """The layers of each agent's three onions; without any, a pipeline is its core alone."""

    def __init__(self) -> None:
        self._placed: defaultdict[tuple[str, Point], list[_Placed]] = defaultdict(list)
        self._layers: dict[tuple[str, Point], tuple[Layer, ...]] = {}

    def layers(self, agent: str, point: Point) -> tuple[Layer, ...]:
        """Return an agent's layers, the outermost first."""
        return self._layers.get((agent, point), ())

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
        if not callable(middleware):
            raise TypeError(f"a middleware is a function, not {type(middleware).__name__}")
        if not takes(middleware, 1):
            raise TypeError("a middleware is called with (ctx); ctx.next() goes on to what is inside of it")
        if type(priority) is not int:
            raise TypeError(f"a priority is a whole number, not {priority!r}")
        name = getattr(middleware, "__name__", type(middleware).__name__)
        placed = self._placed[agent, point]
        layer = Layer(f"{extension}.{name}", middleware)
        insort(placed, _Placed(priority, layer), key=lambda one: one.priority)
        self._layers[agent, point] = tuple(one.layer for one in placed)

    def clear(self, agent: str) -> None:
        """Take all of an agent's middlewares away."""
        for point in get_args(Point):
            self._placed.pop((agent, point), None)
            self._layers.pop((agent, point), None)
