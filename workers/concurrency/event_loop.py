"""The event loop of a process, on a thread of its own: ``async`` handlers run there.

A coroutine may begin on another thread, where it may block and never suspends (:func:`drive`). Before
anything asynchronous it awaits :func:`move_to_loop`; then it continues on the loop.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from workers.concurrency.threads import Work
from workers.forks import end_fork, is_fork
from workers.outcome import FunctionOutcome, outcome_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _MoveToLoop:
    def __await__(self) -> Generator[None, None, None]:
        yield  # a bare yield: drive() hands the coroutine to the loop, asyncio resumes it in the next round


def is_on_loop() -> bool:
    """Return whether this thread runs an event loop and must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def move_to_loop() -> None:
    """Continue on the event loop; does nothing if the coroutine runs there already."""
    if not is_on_loop():
        await _MoveToLoop()


def drive(coroutine: Coroutine[Any, Any, T]) -> tuple[T] | None:
    """Run ``coroutine`` on this thread to its end, or until it moves to the loop.

    Returns:
        Its value in a tuple, or ``None`` if the caller must now give it to the loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return (stop.value,)
    return None


class _Threads(ThreadPoolExecutor):
    """The threads of ``asyncio.to_thread``, from which no forked child comes back."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run a function on one of the threads."""
        return super().submit(_run_to_end, fn, *args, **kwargs)


def _run_to_end(function: Callable[..., T], /, *args: Any, **fields: Any) -> T:
    try:
        return function(*args, **fields)
    finally:
        end_fork()


#: how long a callback that runs when the loop is stopped may take to end
STOP_SECONDS = 10.0


class EventLoopThread:
    """The event loop of this process, on a daemon thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads())
        self._stopped = False
        self._put_off: deque[tuple[Callable[[], object], contextvars.Context]] = deque()
        self._is_woken = False
        self._thread = threading.Thread(target=self._run, name="goondan-event-loop", daemon=True)
        in_child = weakref.WeakMethod(self._end_in_fork)
        os.register_at_fork(after_in_child=lambda: (leave := in_child()) and leave())

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Let the loop run ``coroutine``, which may have begun elsewhere."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def put_off(self, callback: Callable[[], object]) -> None:
        """Let the loop call ``callback`` in this context, after the next :meth:`flush`."""
        self._put_off.append((callback, contextvars.copy_context()))

    def flush(self) -> None:
        """Wake the loop for everything that was put off; a wake-up for each would cost more than its work."""
        if self._put_off and not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits
                self._loop.call_soon_threadsafe(self._catch_up)

    def _catch_up(self) -> None:
        self._is_woken = False
        while self._put_off:
            callback, context = self._put_off.popleft()
            context.run(callback)

    def stop(self) -> None:
        """Stop the loop; tasks that still run are abandoned."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _end_in_fork(self) -> None:
        """In a child that a handler on the loop has forked: end the child as soon as the handler suspends."""
        if is_fork() and threading.current_thread() is self._thread:
            ready: deque[Any] = getattr(self._loop, "_ready")  # noqa: B009 - asyncio has no public way
            ready.clear()
            self._loop.call_soon(end_fork)

    def _run(self) -> None:
        """Run the loop: a task that calls ``sys.exit`` or stops the loop must not end the others."""
        while not self._stopped:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.warning("a task tried to end the event loop: %r", error)


#: runs the first work soon, on a thread that it may block indefinitely, then the second on the event loop
RunOnThread = Callable[[Work, Work], object]


async def beside_loop(function: Callable[[], T], run: RunOnThread) -> T:
    """Call ``function`` on another thread, in a copy of this context; return or raise what it does."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()
    outcome: FunctionOutcome[T] = FunctionOutcome()

    def work() -> None:
        nonlocal outcome
        outcome = context.run(outcome_of, function)

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    run(work, end)
    await ended
    return outcome.get()
