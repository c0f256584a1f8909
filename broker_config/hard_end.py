"""The latest end of a process that was asked to stop."""

import logging
import math
import os
import threading
from queue import Empty, SimpleQueue
from time import monotonic

logger = logging.getLogger(__name__)

#: the exit status of a process that did not end in time
EXIT_HARD = 1
#: how long a program may take to end; one that ends workers has their grace period, too
END_SECONDS = 15.0


class HardEnd:
    """Ends the process if it has not ended by itself in time, whatever its other threads wait for.

    Its thread is started before it is needed: at the limit of threads, none can be started later.
    """

    def __init__(self) -> None:
        # reentrant, so that handlers of signals may use it
        self._ends: SimpleQueue[float | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._wait, name="goondan-hard-end", daemon=True)

    def start(self) -> None:
        """Start the thread; a second call does nothing.

        Raises:
            RuntimeError: the system has no thread left.
        """
        if self._thread.ident is None:
            self._thread.start()

    def within(self, seconds: float) -> None:
        """End the process in so many seconds at the latest; the earliest of several times counts."""
        self._ends.put(monotonic() + seconds)

    def call_off(self) -> None:
        """Forget the times that were set: what might have taken too long has ended."""
        self._ends.put(None)

    def _wait(self) -> None:
        end = math.inf
        while True:
            try:
                left = None if end == math.inf else max(0.0, end - monotonic())
                asked = self._ends.get(timeout=left)
                end = math.inf if asked is None else min(end, asked)
            except Empty:
                break
        try:
            logger.critical("the process did not end in time, and is ended now")
        finally:
            os._exit(EXIT_HARD)
