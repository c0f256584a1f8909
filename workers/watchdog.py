"""Time limits of handlers that nobody can interrupt: somebody else speaks when they are over."""

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from time import monotonic

Alarm = Callable[[], None]


class Watchdog:
    """Calls alarms when their time has come, on one daemon thread. Alarms must be quick."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._called_off: set[int] = set()
        self._changed = threading.Condition()
        #: when the thread looks next, whatever is called off meanwhile
        self._looks_at = math.inf

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="goondan-watchdog", daemon=True).start()

    def watch(self, seconds: float, alarm: Alarm) -> Callable[[], None]:
        """Call ``alarm`` in ``seconds``, unless the function returned here was called before."""
        number = next(self._numbers)
        with self._changed:
            at = monotonic() + seconds
            heapq.heappush(self._alarms, (at, number, alarm))
            if at < self._looks_at:  # waking the thread for every call would cost more than the call
                self._looks_at = at
                self._changed.notify()
        return lambda: self._call_off(number)

    def _call_off(self, number: int) -> None:
        with self._changed:
            self._called_off.add(number)
            while self._alarms and self._alarms[0][1] in self._called_off:
                self._called_off.remove(heapq.heappop(self._alarms)[1])

    def _watch(self) -> None:
        while True:
            self._next()()

    def _next(self) -> Alarm:
        """Wait for the next alarm that is due and not called off."""
        with self._changed:
            while True:
                now = monotonic()
                if self._alarms and self._alarms[0][0] <= now:
                    _, number, alarm = heapq.heappop(self._alarms)
                    if number not in self._called_off:
                        return alarm
                    self._called_off.remove(number)
                    continue
                if self._looks_at <= now:
                    self._looks_at = self._alarms[0][0] if self._alarms else math.inf
                self._changed.wait(min(self._looks_at - now, threading.TIMEOUT_MAX))
