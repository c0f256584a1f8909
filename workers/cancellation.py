"""The cancellation of one run, its time limit, and the callbacks of those that work for it."""

import threading
from collections.abc import Callable
from typing import Protocol

from goondan_tasks.contract.errors import (
    GoondanError,
    HandoffTimeoutError,
    ToolOutcomeUnknownError,
    ToolTimeoutError,
)

Callback = Callable[[], object]


class TimedOut(Protocol):
    """Makes the error of a run that took longer than ``limit`` seconds."""

    def __call__(self, limit: float, *, agent: str | None = None) -> GoondanError:
        """Make the error; if an agent handled an event, ``agent`` is ``agent@instance``."""


def timed_out(limit: float, *, agent: str | None = None) -> GoondanError:
    """Return the error of a handler, or of an agent, that took longer than ``limit`` seconds."""
    if agent is not None:
        return HandoffTimeoutError(f"{agent} did not finish within {limit:g} s.")
    return ToolTimeoutError(f"The tool did not finish within {limit:g} s.")


def way_timed_out(limit: float, *, agent: str | None = None) -> GoondanError:
    """Return the error of a handler that took longer than ``limit`` seconds, its middlewares included."""
    if agent is not None:
        return HandoffTimeoutError(f"{agent} and its middlewares did not finish within {limit:g} s.")
    return ToolTimeoutError(f"The tool and the middlewares around it did not finish within {limit:g} s.")


class Watch(Protocol):
    """Ends a run at its time limit when its handler cannot be interrupted."""

    def __call__(
        self, seconds: float, error: TimedOut = timed_out, /, *, patience: float = 0.0
    ) -> Callable[[], None]:
        """Cancel the run with ``error`` in ``seconds``; return a function that calls this off.

        A handler that can be interrupted has ``patience`` more seconds to end.
        """


class Cancellation:
    """The cancellation of one run. It is set when the result of the run is no longer wanted.

    That is when the call was cancelled (DESIGN "Delivery" rule 7), or when a handler that cannot be
    interrupted is past its limit. Any thread may set it, read it, or register a callback.
    """

    __slots__ = ("_callbacks", "_has_ended", "_lock", "error")

    def __init__(self) -> None:
        #: the error of the call's result once the run is cancelled
        self.error: GoondanError | None = None
        #: each callback, and whether it is called at the end of the run, too
        self._callbacks: list[tuple[Callback, bool]] = []
        self._has_ended = False
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        """Return whether the run is cancelled."""
        return self.error is not None

    @property
    def is_taken_over(self) -> bool:
        """Whether only this run must end, because its claim was lost: the call may run again elsewhere.

        The other run makes the same requests again, with the same ids.
        """
        return isinstance(self.error, ToolOutcomeUnknownError)

    @property
    def is_over(self) -> bool:
        """Whether the run is cancelled or has ended."""
        return self._has_ended or self.is_set()

    def set(self, error: GoondanError) -> None:
        """Cancel the run, and call the callbacks in order; only the first time counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            callbacks, self._callbacks = self._callbacks, []
        for callback, _ in callbacks:
            callback()

    def require_wanted(self) -> None:
        """Raise the error of a cancelled run.

        Raises:
            GoondanError: the run is cancelled.
        """
        if self.error is not None:
            raise self.error

    def on_cancel(self, callback: Callback, *, or_end: bool = False) -> Callable[[], None]:
        """Call ``callback`` when the run is cancelled, at once if it is already.

        With ``or_end`` it is also called when the run ends before that. It is called once, on the thread that
        cancels or ends the run; it must be quick and must not raise.

        Returns:
            A function that removes the callback; calling it too late is harmless.
        """
        with self._lock:
            if self.error is None and not (or_end and self._has_ended):
                entry = (callback, or_end)
                self._callbacks.append(entry)
                return lambda: self._forget(entry)
        callback()
        return lambda: None

    def end(self, *, is_lost: bool = False) -> None:
        """Note that the run has ended, and drop all callbacks, which would keep the run alive.

        Those registered with ``or_end`` are called, unless the claim ``is_lost``: then another run of the
        call continues the requests of this one.
        """
        with self._lock:
            self._has_ended = not is_lost
            callbacks, self._callbacks = self._callbacks, []
        for callback, or_end in callbacks:
            if or_end and not is_lost:
                callback()

    def _forget(self, entry: tuple[Callback, bool]) -> None:
        with self._lock:
            self._callbacks = [one for one in self._callbacks if one is not entry]
