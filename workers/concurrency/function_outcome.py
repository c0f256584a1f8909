"""What came of calling a function, as a value: whatever it raised, too."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar

from workers.concurrency.threads import on_new_thread

T = TypeVar("T")


class FunctionOutcome(Generic[T]):
    """What a function returned, or whatever it raised."""

    __slots__ = ("_value", "error")

    def __init__(self) -> None:
        self._value: Any = None
        self.error: BaseException | None = None

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value

    def note(self, value: T) -> None:
        """Take note of the value."""
        self._value = value

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True


def outcome_of(function: Callable[[], T]) -> FunctionOutcome[T]:
    """Call ``function``; nothing is raised here, not even what ends a process."""
    outcome: FunctionOutcome[T] = FunctionOutcome()  # to say it with brackets takes time
    with outcome:
        outcome.note(function())
    return outcome


def coming_outcome(function: Callable[[], T]) -> Future[FunctionOutcome[T]]:
    """Call ``function`` on a thread of its own: it may hang, and nobody can interrupt it."""
    ended = Future[FunctionOutcome[T]]()
    on_new_thread(lambda: ended.set_result(outcome_of(function)))
    return ended
