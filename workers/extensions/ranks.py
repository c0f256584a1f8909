"""The order in which the functions of extensions stand: by priority, then as they were registered."""

from bisect import insort
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from goondan_tasks.entry import takes

Place = TypeVar("Place", bound=Hashable)
Function = TypeVar("Function")


@dataclass(frozen=True, slots=True)
class _Ranked(Generic[Function]):
    priority: int
    function: Function


class Ranks(Generic[Place, Function]):
    """The functions at each place of each agent's pipelines, lower priorities first (DESIGN §6)."""

    def __init__(self) -> None:
        self._ranked: defaultdict[tuple[str, Place], list[_Ranked[Function]]] = defaultdict(list)
        #: replaced, never changed: whoever calls them reads it without a lock
        self._functions: dict[tuple[str, Place], tuple[Function, ...]] = {}

    def of(self, agent: str, place: Place) -> tuple[Function, ...]:
        """Return those at a place, in order."""
        return self._functions.get((agent, place), ())

    def add(self, agent: str, place: Place, function: Function, priority: int) -> None:
        """Put one behind those of the same priority.

        Raises:
            TypeError: the priority is no whole number.
        """
        if type(priority) is not int:
            raise TypeError(f"a priority is a whole number, not {priority!r}")
        ranked = self._ranked[agent, place]
        insort(ranked, _Ranked(priority, function), key=lambda one: one.priority)
        self._functions[agent, place] = tuple(one.function for one in ranked)

    def clear(self, agent: str, place: Place) -> None:
        """Take those at a place away."""
        self._ranked.pop((agent, place), None)
        self._functions.pop((agent, place), None)


def require_function(function: Any, count: int, how: str) -> None:
    """Let only what can be called with ``count`` arguments stand in a pipeline.

    Raises:
        TypeError: it cannot.
    """
    if not callable(function):
        raise TypeError(f"a middleware is a function, not {type(function).__name__}")
    if not takes(function, count):
        raise TypeError(f"a middleware is called with {how}")


def function_name(extension: str, function: Any, given: str | None = None) -> str:
    """Return what errors call a function of an extension."""
    return f"{extension}.{given or getattr(function, '__name__', type(function).__name__)}"
