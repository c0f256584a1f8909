"""Ending one run before its handler ends: who wants that says so here, and who must let go is told."""

import threading
from collections.abc import Callable
from typing import Protocol

from goondan_tasks.errors import GoondanError, ToolOutcomeUnknownError
from workers.handlers import TimedOut, timed_out

Callback = Callable[[], object]


class Watch(Protocol):
    """Sees to it that a run ends in time where nobody can interrupt it."""

    def __call__(
        self, seconds: float, error: TimedOut = timed_out, /, *, patience: float = 0.0
    ) -> Callable[[], None]:
        """Cancel the run with ``error`` in ``seconds``; return what to call when it need not any more.

        What can be interrupted has ``patience`` seconds beyond them to end by itself.
        """


class Cancellation:
    """One run's. It is set when nobody wants the run's result any more.

    That is so when its call was cancelled (DESIGN "Delivery" rule 7), and when a handler that nobody can
    interrupt is past its limit. Any thread may set it, ask, or wait to be told.
    """

    __slots__ = ("_callbacks", "_lock", "error")

    def __init__(self) -> None:
        #: what the call ends with, once it is cancelled
        self.error: GoondanError | None = None
        self._callbacks: list[Callback] = []
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        """Say whether the run is cancelled."""
        return self.error is not None

    @property
    def is_taken_over(self) -> bool:
        """Whether only this run is to end, because its claim was lost: its call may be run again elsewhere.

        What it has asked for is then asked for again, by the same ids.
        """
        return isinstance(self.error, ToolOutcomeUnknownError)

    def set(self, error: GoondanError) -> None:
        """Cancel the run, and tell all who asked for it, in their order; only the first time counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def require_wanted(self) -> None:
        """Let only a run go on whose result is still wanted.

        Raises:
            GoondanError: it is cancelled; this is what the call ends with.
        """
        if self.error is not None:
            raise self.error

    def on_cancel(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` when the run is cancelled, at once if it is already.

        It is called once, on the thread that cancels; it must be quick and must not raise.

        Returns:
            What to call when it need not be told any more; calling that too late does no harm.
        """
        with self._lock:
            if self.error is None:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return _nothing

    def end(self) -> None:
        """Tell nobody any more: the run has ended. Who wanted to know would keep it alive, in a circle."""
        with self._lock:
            self._callbacks = []

    def _forget(self, callback: Callback) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


def _nothing() -> None:
    pass
