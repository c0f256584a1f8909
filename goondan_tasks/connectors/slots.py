"""When a Connector's triggers of type ``cron`` are due.

A slot calls the entry once: it is noted when the call has ended, and what the call emits is known by the
slot, so a second call after a crash begins no second Turn. Of slots that passed while nothing ran, the latest
is made up for, as a Schedule does by default.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schedules import Schedule, slot_text

logger = structlog.get_logger("goondan.connector")


@dataclass(frozen=True, slots=True)
class CronSlots:
    """The slots of one Connection."""

    store: ConnectionStore
    connection: str
    #: by the number of the trigger
    schedules: Mapping[int, Schedule]

    def next(self, lease: Lease, trigger: int) -> JsonObject | None:
        """Return the slot that is due, or how long until then; ``None`` if none follows.

        Raises:
            ConnectorError: another process has the lease.
        """
        schedule, now = self.schedules[trigger], self.store.now()
        last = self.store.slot(self.connection, trigger, schedule.timing_digest)
        if last is None:  # its first run
            self.store.move_slot(lease, trigger, schedule.timing_digest, int(now))
            last = int(now)
        first = schedule.timing.next(last)
        if first is None:
            return None
        if first > now:
            return {"inSeconds": (first - now) / 1000}
        [firing] = schedule.firings(first, now)
        if firing.missed:
            logger.warning(
                "connector.slots-missed", connection=self.connection, trigger=trigger, missed=firing.missed
            )
        slot = firing.slot or first
        return {"slot": slot, "scheduledAt": slot_text(slot)}

    def done(self, lease: Lease, trigger: int, slot: int) -> None:
        """Note that a slot is dealt with.

        Raises:
            ConnectorError: another process has the lease.
        """
        self.store.move_slot(lease, trigger, self.schedules[trigger].timing_digest, slot)


def schedules_of(program: ConnectorProgram) -> dict[int, Schedule]:
    """Return when a program's triggers are due, by their numbers."""
    declared = program.called["triggers"] if program.called else []
    return {
        number: Schedule(
            name=program.connection,
            cron=declared[number]["schedule"],
            time_zone=declared[number].get("timeZone") or "UTC",
            agent="connector",
        )
        for number in program.triggers("cron")
    }
