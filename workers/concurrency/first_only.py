"""A call has one result: that of its run, or the one that was answered in its place while it still ran."""

import threading
from collections.abc import Callable
from typing import Protocol

from goondan_tasks.messages import ToolCallResult


class Receiver(Protocol):
    """Takes the result of a call."""

    def __call__(self, result: ToolCallResult, *, still_runs: bool = False) -> object:
        """Take it; ``still_runs`` says that the handler has not ended."""


class FirstOnly:
    """Passes on the first result it gets; that of a run which was answered for goes to ``late``."""

    def __init__(self, receiver: Receiver, late: Callable[[ToolCallResult], object]) -> None:
        self._receiver = receiver
        self._late = late
        self._lock = threading.Lock()
        self._is_taken = False

    def answer(self, result: ToolCallResult) -> bool:
        """Answer in the place of a handler that still runs; say whether this is the first result."""
        with self._lock:  # the late one must not overtake this one
            is_first = self._take()
            if is_first:
                self._receiver(result, still_runs=True)
        return is_first

    def __call__(self, result: ToolCallResult) -> None:
        """Pass on what the run has ended with."""
        with self._lock:
            is_first = self._take()
        if is_first:
            self._receiver(result)
        else:
            self._late(result)

    def _take(self) -> bool:
        is_first, self._is_taken = not self._is_taken, True
        return is_first
