"""The one boundary around foreign code: what it raises becomes a value, even what would end a process.

Handlers, extensions, middlewares and entry files are run through here, in the worker and in the child of an
isolated tool. It is also the last boundary of a thread or a call, where a fault of ours must not cost the
others; ``tests/architecture`` lists those who call it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FunctionOutcome(Generic[T]):
    """What a function returned, or whatever it raised."""

    __slots__ = ("_value", "error")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self.error = error

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value


def outcome_of(function: Callable[[], T]) -> FunctionOutcome[T]:
    """Call ``function``; nothing is raised here."""
    try:
        return FunctionOutcome(function())
    except BaseException as error:  # noqa: BLE001 - the boundary
        return FunctionOutcome(None, error)


async def awaited_outcome(awaitable: Awaitable[T]) -> FunctionOutcome[T]:
    """Await ``awaitable``; nothing is raised here, not even that the task is cancelled."""
    try:
        return FunctionOutcome(await awaitable)
    except BaseException as error:  # noqa: BLE001 - the boundary
        return FunctionOutcome(None, error)
