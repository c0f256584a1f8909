"""A worker fires schedules in time: it looks at the next slot."""

from typing import Any

import structlog
from redis.exceptions import RedisError

from goondan_tasks.ledger.schedule_keeper import ScheduleKeeper

logger = structlog.get_logger(__name__)

#: a timer that is earlier than its slot by a little would only look twice
SPARE_SECONDS = 0.002


class ScheduleWatch:
    """Looks at schedules with each heartbeat, and at the next slot if that comes before; on the main thread.

    All workers do the same at the same time, and the first of them fires the slot.
    """

    def __init__(self, keeper: ScheduleKeeper, timer: Any, *, beat_seconds: float) -> None:
        self.keeper = keeper
        self._timer = timer
        self._beat_seconds = beat_seconds
        self._next: Any = None

    def look(self) -> None:
        """Fire what is due, and set the timer for the next slot; raises RedisError."""
        seconds = self.keeper.look()
        self.stop()
        if seconds is not None and seconds <= self._beat_seconds:
            self._next = self._timer.call_after(seconds + SPARE_SECONDS, self._look_by_timer)

    def _look_by_timer(self) -> None:
        self._next = None
        try:
            self.look()
        except RedisError as error:  # the next heartbeat looks again
            logger.warning("schedules.not_looked_at", reason=str(error))

    def stop(self) -> None:
        """Cancel the timer."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
