"""A worker keeps the schedules of its bundle, and fires those that are due."""

from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.connections import redis_time
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.schedules import schedules_of
from goondan_tasks.contract.schedules import slot_text
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.schedules import RUN_TIME, Fired, ScheduleStore

logger = structlog.get_logger(__name__)

#: a timer that is earlier than its slot by a little would only look twice
SPARE_SECONDS = 0.002


class ScheduleWatch:
    """Fires the schedules of a bundle, and those made at run time; on the main thread.

    It looks with each heartbeat, and at the next slot if that comes before the next heartbeat. All workers do
    the same at the same time, and the first of them fires the slot.
    """

    def __init__(self, ledger: Ledger, reaper: Reaper, timer: Any, *, beat_seconds: float) -> None:
        self._ledger = ledger
        self._store = ScheduleStore(ledger)
        self._reaper = reaper
        self._timer = timer
        self._beat_seconds = beat_seconds
        self._owner = RUN_TIME
        self._next: Any = None
        #: a revision of the bundle, and since when this process has it, in Redis' time (ms)
        self._since: tuple[str | None, float] | None = None

    def keep(self, bundle: Bundle, ref: str | None, swarm: str | None, workspace: str | None) -> None:
        """Replace the schedules of the bundle by those of this revision; raises RedisError.

        After a reconnection they are written again, for Redis may have lost them. Those of a worker that
        has loaded the bundle later stay.
        """
        if self._since is None or self._since[0] != ref:
            self._since = ref, redis_time(self._ledger.redis)
        self._owner, schedules = schedules_of(bundle, swarm, workspace)
        if not self._store.keep(self._owner, schedules, self._since[1]):
            logger.warning(
                "schedules.older_bundle",
                workspace=self._owner,
                effect="The schedules stay those of a worker that has loaded the bundle later.",
            )

    def look(self) -> None:
        """Fire what is due, and set the timer for the next slot; raises RedisError."""
        looked = self._store.fire_due(
            [self._owner, RUN_TIME] if self._owner else [RUN_TIME],
            lambda ids: self._reaper.cancel_many(ids, "schedule"),
        )
        for fired in looked.fired:
            _log(fired)
        self.stop()
        if looked.next_seconds is not None and looked.next_seconds <= self._beat_seconds:
            self._next = self._timer.call_after(looked.next_seconds + SPARE_SECONDS, self._look_by_timer)

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


def _log(fired: Fired) -> None:
    schedule, firing, word = fired.schedule, fired.firing, fired.word
    if word == "stale":  # another worker says it
        return
    fields = {"schedule": schedule.full_name, "agent": schedule.agent}
    if firing.missed:
        logger.warning("schedule.missed", **fields, count=firing.missed, catch_up=schedule.catch_up)
    if firing.slot is None:
        return
    fields |= {"slot": slot_text(firing.slot)} | ({"tool": schedule.tool} if schedule.tool else {})
    if word == "skipped":
        logger.warning("schedule.skipped", **fields, reason="an earlier run is open")
    elif word == "damaged":
        logger.error(
            "schedule.not_accepted", **fields, call_id=fired.call_id, reason="its mailbox is damaged"
        )
    else:
        logger.info("schedule.fired", **fields, call_id=fired.call_id)
