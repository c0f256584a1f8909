"""Sweeping at most once in a while, for all waiting threads of a client."""

import threading
import time
from collections.abc import Callable


class Sweeper:
    """Sweeps at most once in ``seconds``, however many threads ask for it."""

    def __init__(self, sweep: Callable[[], object], seconds: float) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._due = 0.0
        self._lock = threading.Lock()

    def sweep(self) -> bool:
        """Sweep if it is time; say whether that was so.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._due:
                return False
            self._due = now + self._seconds
        self._sweep()
        return True
