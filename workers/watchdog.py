"""Time limits of handlers that nobody can interrupt: somebody else speaks when they are over."""

import heapq
import itertools
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

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="goondan-watchdog", daemon=True).start()

    def watch(self, seconds: float, alarm: Alarm) -> Callable[[], None]:
        """Call ``alarm`` in ``seconds``, unless the function returned here was called before."""
        number = next(self._numbers)
        with self._changed:
            heapq.heappush(self._alarms, (monotonic() + seconds, number, alarm))
            if self._alarms[0][1] == number:
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
                wait = self._alarms[0][0] - monotonic() if self._alarms else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, number, alarm = heapq.heappop(self._alarms)
                if number not in self._called_off:
                    return alarm
                self._called_off.remove(number)
