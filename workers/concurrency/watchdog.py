"""Alarms on one thread: for time limits of handlers that cannot be interrupted, and for pauses."""

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from time import monotonic

from broker_config.vital_thread import vital_thread

Alarm = Callable[[], None]

#: cancels an alarm
CallOff = Callable[[], None]

#: cancelled alarms are removed when there are more than this, and more than there are others
MOST_CALLED_OFF = 1_000


class _Entry:
    """A heap entry, which keeps nothing of an alarm that is cancelled."""

    __slots__ = ("alarm",)

    def __init__(self, alarm: Alarm) -> None:
        self.alarm: Alarm | None = alarm


class Watchdog:
    """Calls alarms when they are due, on one daemon thread. Alarms must be quick."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, _Entry]] = []
        self._numbers = itertools.count()
        #: how many of them are cancelled
        self._called_off = 0
        self._changed = threading.Condition()
        #: when the thread looks next; cancelled alarms do not change it
        self._looks_at = math.inf

    def start(self) -> None:
        """Start the thread."""
        vital_thread("goondan-watchdog", self._watch).start()

    def watch(self, seconds: float, alarm: Alarm) -> CallOff:
        """Call ``alarm`` in ``seconds``; return a function that cancels it."""
        entry = _Entry(alarm)
        with self._changed:
            at = monotonic() + seconds
            heapq.heappush(self._alarms, (at, next(self._numbers), entry))
            if at < self._looks_at:  # waking the thread for each call would cost more than the call
                self._looks_at = at
                self._changed.notify()
        return lambda: self._call_off(entry)

    @property
    def size(self) -> int:
        """How many heap entries there are, cancelled alarms included."""
        return len(self._alarms)

    def _call_off(self, entry: _Entry) -> None:
        with self._changed:
            if entry.alarm is None:  # it was called already
                return
            entry.alarm = None
            self._called_off += 1
            while self._alarms and self._alarms[0][2].alarm is None:
                heapq.heappop(self._alarms)
                self._called_off -= 1
            if self._called_off > max(MOST_CALLED_OFF, len(self._alarms) // 2):
                self._alarms = [one for one in self._alarms if one[2].alarm is not None]
                heapq.heapify(self._alarms)
                self._called_off = 0

    def _watch(self) -> None:
        while True:
            self._next()()

    def _next(self) -> Alarm:
        """Wait until an alarm is due that is not cancelled."""
        with self._changed:
            while True:
                now = monotonic()
                if self._alarms and self._alarms[0][0] <= now:
                    entry = heapq.heappop(self._alarms)[2]
                    alarm, entry.alarm = entry.alarm, None
                    if alarm is not None:
                        return alarm
                    self._called_off -= 1
                    continue
                if self._looks_at <= now:
                    self._looks_at = self._alarms[0][0] if self._alarms else math.inf
                self._changed.wait(min(self._looks_at - now, threading.TIMEOUT_MAX))
