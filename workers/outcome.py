"""The boundary around foreign code: every exception becomes a value, even one that would end the process.

Handlers, extensions, middlewares and entry files are run through it, in workers and in isolated children. It
is also the last boundary of a thread or a call, where a fault of ours must not harm the others. A child that
foreign code has forked ends here.
``tests/architecture`` lists its callers.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from workers.forks import end_fork

T = TypeVar("T")


class FunctionOutcome(Generic[T]):
    """What a function returned or raised."""

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
        value = function()
    except BaseException as error:  # noqa: BLE001 - the boundary
        end_fork()
        return FunctionOutcome(None, error)
    end_fork()
    return FunctionOutcome(value)


async def awaited_outcome(awaitable: Awaitable[T]) -> FunctionOutcome[T]:
    """Await ``awaitable``; nothing is raised here, not even that the task is cancelled."""
    try:
        value = await awaitable
    except BaseException as error:  # noqa: BLE001 - the boundary
        end_fork()
        return FunctionOutcome(None, error)
    end_fork()
    return FunctionOutcome(value)
