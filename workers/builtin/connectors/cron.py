"""Emits an event at each time that fits a text of cron. A ``kind: Schedule`` fires without this process and
can call tools; this connector is for slots whose events shall go the way of other events, by a Connection's
rules.

========================================  ==========================================================
config ``CRON``                           such as ``0 9 * * MON-FRI``; 6 fields begin with the second
config ``TIME_ZONE``                      default ``UTC``
config ``CATCH_UP``                       of the slots that passed while nothing ran: ``skip``,
                                          ``once`` (the default) or ``all``, 24 at most
config ``TEXT``                           what the agent reads; ``{{slot}}`` becomes the slot
========================================  ==========================================================

The cursor is the next slot. A slot's event has the slot as its id, so it begins one Turn, whatever crashes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from goondan_tasks.connector_api import ConnectorContext, ConnectorEvent, TextMessage
from goondan_tasks.contract.messages import faults_of
from goondan_tasks.contract.schedules import Schedule, slot_text
from goondan_tasks.contract.templates import filled
from goondan_tasks.errors import ConnectorError

#: how soon it is noticed that the clock was set, in seconds
LONGEST_SLEEP = 30.0


async def connect(ctx: ConnectorContext) -> None:
    """Emit slots until the process ends, or no slot follows."""
    await emit_slots(ctx, schedule_of(ctx), clock=time.time, sleep=asyncio.sleep)


def schedule_of(ctx: ConnectorContext) -> Schedule:
    """Return what the Connection's config says. What is due is decided as for a ``kind: Schedule``."""
    config = ctx.config
    try:
        return Schedule.from_wire({
            "name": ctx.connection_name,
            "agent": ctx.connector_name,  # not used: the Connection's rules name the agent
            "cron": config.get("CRON", ""),
            "timeZone": config.get("TIME_ZONE", "UTC"),
            "catchUp": config.get("CATCH_UP", "once"),
        })  # fmt: skip
    except ValidationError as error:
        raise ConnectorError(
            f"The config is not valid: {faults_of(error)}.",
            suggestion="Write CRON as 5 fields, such as '0 9 * * MON-FRI', and TIME_ZONE as Europe/Berlin.",
        ) from error


async def emit_slots(
    ctx: ConnectorContext,
    schedule: Schedule,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
) -> None:
    """Emit each slot when it is due by ``clock``, in seconds since the epoch."""
    kept = await ctx.cursor.get()
    is_same = isinstance(kept, dict) and kept.get("timing") == schedule.timing_digest
    slot = kept["next"] if is_same else schedule.next(clock() * 1000).slot
    while slot is not None:
        await ctx.cursor.set({"timing": schedule.timing_digest, "next": slot})
        while (wait := slot / 1000 - clock()) > 0:
            await sleep(min(wait, LONGEST_SLEEP))
        for firing in schedule.firings(slot, clock() * 1000):
            if firing.missed:
                ctx.logger.warning("cron.missed", slots=firing.missed)
            if firing.slot is not None:
                await ctx.emit(event_of(ctx, firing.slot, firing.missed))
            slot = firing.following.slot
            await ctx.cursor.set({"timing": schedule.timing_digest, "next": slot})
    ctx.logger.info("cron.over")


def event_of(ctx: ConnectorContext, slot: int, missed: int) -> ConnectorEvent:
    """Return the event of a slot, in ms since the epoch, before which so many were missed."""
    shown = slot_text(slot)
    return ConnectorEvent(
        id=shown,
        name="cron_slot",
        message=TextMessage(text=filled(ctx.config.get("TEXT", shown), {"slot": shown})),
        properties={"slot": shown, "missed": str(missed)},
        instance_key=f"cron:{ctx.connection_name}",
    )
