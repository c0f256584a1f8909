"""Plain code, which may block, asked for by ``async`` code: on a thread, never on the event loop's."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar

from workers.threads import Job

T = TypeVar("T")

#: runs a job soon, on a thread that it may block for as long as it likes, and then another on the event loop
RunOnThread = Callable[[Job, Job], object]


def on_new_thread(job: Job, then: Job | None = None) -> None:
    """Run ``job`` on a daemon thread of its own, and ``then``, if any, on the event loop that asks for it."""
    loop = None if then is None else asyncio.get_running_loop()

    def work() -> None:
        job()
        if loop is not None and then is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(then)

    threading.Thread(target=work, name="goondan-beside-loop", daemon=True).start()


def is_on_loop() -> bool:
    """Say whether this thread runs an event loop, and must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def beside_loop(function: Callable[[], T], run: RunOnThread) -> T:
    """Return what ``function`` returns on another thread, in a copy of this context; raise what it raises."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()
    outcome: FunctionOutcome[T] = FunctionOutcome()

    def job() -> None:
        nonlocal outcome
        outcome = context.run(outcome_of, function)

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    run(job, tell)
    await ended
    return outcome.get()


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


def outcome_within(seconds: float, function: Callable[[], T]) -> FunctionOutcome[T] | None:
    """Call ``function`` on a thread of its own: it may hang, and nobody can interrupt it.

    Returns:
        ``None`` if it does not end in time; it may still go on.
    """
    ended = Future[FunctionOutcome[T]]()
    on_new_thread(lambda: ended.set_result(outcome_of(function)))
    try:
        return ended.result(seconds)
    except TimeoutError:
        return None
