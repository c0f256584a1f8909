"""Being asked to stop: once, and everything ends in order; twice, and it ends at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from goondan_tasks.hangup import heeds_hangup

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Whether this process was asked to stop, by Ctrl-C, SIGTERM or the end of its terminal."""

    def __init__(self) -> None:
        #: is set with the first signal
        self.asked = threading.Event()
        #: how a shell counts a program that the signal ended: 130 for Ctrl-C
        self.exit_code = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for the length of a ``with`` block.

        Raises:
            KeyboardInterrupt: with the second signal; of SIGHUP, a terminal's end may send two.
        """
        heeded = (number for number in _SIGNALS if number != signal.SIGHUP or heeds_hangup())
        before = {number: signal.signal(number, self._on_signal) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self.asked.is_set():
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        self.exit_code = 128 + number
        self.asked.set()
