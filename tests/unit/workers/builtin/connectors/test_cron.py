"""The built-in connector `cron`, on a clock of its own."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from goondan_tasks.contract.errors import ConnectorError
from tests.unit.workers.builtin.connectors.contexts import Enough, FakeContext, KeptCursor
from workers.builtin.connectors.cron import emit_slots, schedule_of


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def run(at: str, until: str, cursor: Any = None, **config: str) -> FakeContext:
    """Run the connector from one time to another; its cursor goes on from ``cursor``."""
    now = seconds(at)

    async def sleep(pause: float) -> None:
        nonlocal now
        now += pause
        if now > seconds(until):
            raise Enough

    ctx = FakeContext(config=config, cursor=KeptCursor(cursor, is_async=True))
    with pytest.raises(Enough):
        asyncio.run(emit_slots(ctx, schedule_of(ctx), clock=lambda: now, sleep=sleep))
    return ctx


def test_each_slot_is_event_with_slot_id() -> None:
    ctx = run("2026-11-27T07:30", "2026-11-30T08:30", CRON="0 9 * * MON-FRI", TIME_ZONE="Europe/Berlin")

    friday, monday = ctx.events
    assert friday.to_wire() == {
        "id": "2026-11-27T08:00:00Z",
        "name": "cron_slot",
        "message": {"type": "text", "text": "2026-11-27T08:00:00Z"},
        "properties": {"slot": "2026-11-27T08:00:00Z", "missed": "0"},
        "instanceKey": "cron:main",
    }
    assert monday.id == "2026-11-30T08:00:00Z"


def test_text_of_config_has_slot() -> None:
    ctx = run("2026-11-27T00:10", "2026-11-27T01:30", CRON="0 * * * *", TEXT="Report of {{slot}}.")

    assert ctx.texts == ["Report of 2026-11-27T01:00:00Z."]


@pytest.mark.parametrize(
    ("catch_up", "ids", "missed"),
    [
        ("once", ["04:00", "05:00"], ["2", "0"]),
        ("all", ["02:00", "03:00", "04:00", "05:00"], ["0", "0", "0", "0"]),
        ("skip", ["05:00"], ["0"]),
    ],
)
def test_missed_slots_are_made_up_per_config(catch_up: str, ids: list[str], missed: list[str]) -> None:
    stopped = run("2026-11-27T00:30", "2026-11-27T01:30", CRON="0 * * * *", CATCH_UP=catch_up)

    ctx = run(
        "2026-11-27T04:30", "2026-11-27T05:30", stopped.cursor.value, CRON="0 * * * *", CATCH_UP=catch_up
    )

    assert [event.id for event in ctx.events] == [f"2026-11-27T{hour}:00Z" for hour in ids]
    assert [event.properties["missed"] for event in ctx.events] == missed


def test_cursor_of_changed_cron_text_is_ignored() -> None:
    stopped = run("2026-11-27T00:30", "2026-11-27T01:30", CRON="0 * * * *")

    ctx = run("2026-11-27T04:30", "2026-11-27T04:50", stopped.cursor.value, CRON="*/15 * * * *")

    assert [event.id for event in ctx.events] == ["2026-11-27T04:45:00Z"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no text of cron"),
        ({"CRON": "61 * * * *"}, "no text of cron"),
        ({"CRON": "0 9 * * *", "TIME_ZONE": "Mars/Base"}, "no time zone"),
        ({"CRON": "0 9 * * *", "CATCH_UP": "some"}, "catchUp"),
    ],
)
def test_wrong_config_of_cron_is_reported(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        schedule_of(FakeContext(config=config))
