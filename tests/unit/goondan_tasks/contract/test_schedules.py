"""Which slots of a schedule are fired after an outage, and the event or call of a slot."""

from typing import Any

import pytest

from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.events import event_of, is_event
from goondan_tasks.contract.schedules import MOST_COUNTED, Firing, Schedule, slot_text

HOUR = 3_600_000
#: a full hour
FIRST = 1_790_002_800_000


def schedule(**fields: Any) -> Schedule:
    return Schedule.from_wire({"name": "hourly", "owner": "w", "every": "1h", "agent": "coder", **fields})


def summary(firings: list[Firing]) -> list[tuple[int | None, int]]:
    """Return which slots are fired, in hours since the first, and how many are missed before each."""
    return [(None if one.slot is None else (one.slot - FIRST) // HOUR, one.missed) for one in firings]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"catchUp": "skip"}, [(None, 13)]),
        ({"catchUp": "once"}, [(12, 12)]),
        ({"catchUp": "all"}, [(hour, 0) for hour in range(13)]),
        ({"catchUp": "all", "catchUpLimit": 4}, [(9, 9), (10, 0), (11, 0), (12, 0)]),
    ],
)
def test_outage_over_twelve_slots_and_half(fields: dict[str, Any], expected: list[Any]) -> None:
    """The slots 0 to 12 are past when the workers return; the last of them is half an hour old."""
    firings = schedule(**fields).firings(FIRST, FIRST + 12.5 * HOUR)

    assert summary(firings) == expected
    assert firings[-1].following.slot == FIRST + 13 * HOUR


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"catchUp": "skip"}, [(12, 12)]),
        ({"catchUp": "once"}, [(12, 12)]),
        ({"catchUp": "all", "catchUpLimit": 4}, [(8, 8), (9, 0), (10, 0), (11, 0), (12, 0)]),
    ],
)
def test_outages_last_slot_is_fired_unless_late(fields: dict[str, Any], expected: list[Any]) -> None:
    assert summary(schedule(**fields).firings(FIRST, FIRST + 12 * HOUR + 20_000)) == expected


def test_each_firing_expects_following_slot_of_previous_firing() -> None:
    firings = schedule(catchUp="all").firings(FIRST, FIRST + 3 * HOUR)

    assert [one.expected for one in firings[1:]] == [one.following.slot for one in firings[:-1]]
    assert firings[0].expected == FIRST


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_slot_in_time_is_fired_with_every_policy(policy: str) -> None:
    assert summary(schedule(catchUp=policy).firings(FIRST, FIRST + 900)) == [(0, 0)]


def test_long_outage_is_counted_to_limit_then_caught_up() -> None:
    every = schedule(every="1s", catchUp="all", catchUpLimit=3)
    now = FIRST + 7 * 24 * HOUR

    firings = every.firings(FIRST, now)

    assert [one.slot for one in firings] == [now - 3_000, now - 2_000, now - 1_000, now]
    assert firings[0].missed == MOST_COUNTED - 4
    assert firings[-1].following.slot == now + 1_000


def test_jitter_makes_slot_due_later_not_late() -> None:
    spread = schedule(jitterSeconds=1800, catchUp="skip")
    due = spread.next(FIRST - 1)

    assert due.slot == FIRST
    assert due.at is not None
    assert FIRST < due.at <= FIRST + 1_800_000
    assert summary(spread.firings(FIRST, due.at)) == [(0, 0)]


def test_agents_slot_is_event_containing_slot() -> None:
    one = schedule(input={"due": ["{{slot}}"], "n": 1}, instanceKey="day-{{slot}}")
    call = one.call(slot_text(FIRST), FIRST + 5, missed=2)
    event = event_of(call, 0)

    assert is_event(call)
    assert event.input == {"due": ["2026-09-21T15:00:00Z"], "n": 1}
    assert call.instance_key == "day-2026-09-21T15:00:00Z"
    assert (event.source.kind, event.type) == ("connector", "schedule.fired")
    assert event.metadata == {"schedule": "w/hourly", "slot": "2026-09-21T15:00:00Z", "missed": 2}
    assert event.id == "schedule:w/hourly:2026-09-21T15:00:00Z"
    assert call.origin == {"schedule": "w/hourly", "slot": "2026-09-21T15:00:00Z"}


def test_slot_of_tool_is_call_that_begins_trace() -> None:
    one = schedule(tool="bash__exec", args={"command": "date {{slot}}"})
    call = one.call(slot_text(FIRST), FIRST)

    assert (call.tool_name, call.args) == ("bash__exec", {"command": "date 2026-09-21T15:00:00Z"})
    assert call.parent_span_id is None
    assert len(call.trace_id) == 32
    assert identity_of(call) == identity_of(one.call(slot_text(FIRST), FIRST + 99_000))


@pytest.mark.parametrize(
    "fields",
    [
        {"cron": "* * * * *"},
        {"every": None},
        {"every": "2x"},
        {"timeZone": "Mars/Base"},
        {"tool": "bash__exec", "input": 1},
        {"args": {"a": 1}},
        {"catchUp": "all", "overlap": "skip"},
        {"catchUp": "never"},
        {"jitterSeconds": -1},
        {"catchUpLimit": 0},
        {"instanceKey": ""},
    ],
)
def test_schedule_that_is_not_valid_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        schedule(**fields)
