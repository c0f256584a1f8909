"""The schedules of one bundle, kept and fired by a worker, or by an orchestrator while there is none."""

import structlog

from broker_config.connections import redis_time
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.schedules import schedules_of
from goondan_tasks.contract.schedules import slot_text
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.schedules import RUN_TIME, Fired, ScheduleStore

logger = structlog.get_logger(__name__)


#: a time in ms before any worker
_BEFORE_WORKERS = 1.0


class ScheduleKeeper:
    """Keeps the schedules of a bundle, and fires them and those made at run time."""

    def __init__(self, ledger: Ledger, reaper: Reaper) -> None:
        self._ledger = ledger
        self._store = ScheduleStore(ledger)
        self._reaper = reaper
        self._owner = RUN_TIME
        #: a revision of the bundle, and since when this process has it, in Redis' time (ms)
        self._since: tuple[str | None, float] | None = None
        self._is_older = False

    def keep_first(self, bundle: Bundle, swarm: str | None, workspace: str | None) -> None:
        """Write the schedules of the bundle if no worker has done so yet; raises RedisError."""
        self._owner, schedules = schedules_of(bundle, swarm, workspace)
        self._store.keep(self._owner, schedules, _BEFORE_WORKERS)

    def keep(self, bundle: Bundle, ref: str | None, swarm: str | None, workspace: str | None) -> None:
        """Replace the schedules of the bundle by those of this revision; raises RedisError.

        After a reconnection they are written again, for Redis may have lost them. Those of a worker that has
        loaded the bundle later stay.
        """
        if self._since is None or self._since[0] != ref:
            self._since, self._is_older = (ref, redis_time(self._ledger.redis)), False
        self._owner, schedules = schedules_of(bundle, swarm, workspace)
        if not self._store.keep(self._owner, schedules, self._since[1]) and not self._is_older:
            self._is_older = True
            logger.warning(
                "schedules.older_bundle",
                workspace=self._owner,
                effect="The schedules stay those of a worker that has loaded the bundle later.",
            )

    def look(self) -> float | None:
        """Fire what is due; return in how many seconds the next slot is. Raises RedisError."""
        looked = self._store.fire_due(
            [self._owner, RUN_TIME] if self._owner else [RUN_TIME],
            lambda ids: self._reaper.cancel_many(ids, "schedule"),
        )
        for fired in looked.fired:
            _log(fired)
        return looked.next_seconds


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
