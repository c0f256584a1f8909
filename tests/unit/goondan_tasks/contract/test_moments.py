"""When a call may run, as producers say it."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from goondan_tasks.authoring.handoff import moment_of
from goondan_tasks.contract.calls import new_call, timed_draft
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.contract.moments import LONGEST_DELAY_SECONDS, Moment, delay_fault

SEOUL = timezone(timedelta(hours=9))
CALL = {"agentName": "coder", "toolName": "bash__exec", "args": {}}


class Nowhere(tzinfo):
    """A time zone that knows no offset, as datetime allows."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    ("given", "time"),
    [
        ({"not_before": "2026-12-01T09:00+09:00"}, "2026-12-01T00:00:00.000Z"),
        ({"notBefore": "2026-12-01T00:00:00"}, "2026-12-01T00:00:00.000Z"),
        ({"not_before": datetime(2026, 12, 1, 9, tzinfo=SEOUL)}, "2026-12-01T00:00:00.000Z"),
        ({"not_before": datetime(2026, 12, 1, 0, 0, 0, 1, tzinfo=UTC)}, "2026-12-01T00:00:00.001Z"),
        ({"not_before": datetime.min.replace(tzinfo=UTC)}, "0001-01-01T00:00:00.000Z"),
        ({"delay": 1.5}, "1970-01-01T00:00:02.500Z"),
        ({"delay": 0.0001}, "1970-01-01T00:00:01.001Z"),
        ({"delay": 0}, None),
        ({"delay": None, "not_before": None}, None),
    ],
)  # fmt: skip
def test_calls_utc_time_is_never_too_early(given: dict[str, Any], time: str | None) -> None:
    assert Moment.of(given).at(1_000) == time


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"delay": -1}, "delay: must be a number of seconds from 0"),
        ({"delay": True}, "delay: must be a number of seconds"),
        ({"delay": float("nan")}, "delay: must be a number of seconds"),
        ({"delay": float("inf")}, "delay: must be a number of seconds"),
        ({"delay": "10m"}, "delay: must be a number of seconds"),
        ({"delay": LONGEST_DELAY_SECONDS + 1}, "(a year)"),
        ({"not_before": "tomorrow"}, "is not an ISO 8601 time"),
        ({"not_before": 12}, "must be a datetime or ISO 8601 text"),
        ({"not_before": ""}, 'not_before: "" is not an ISO 8601 time'),
        ({"not_before": 0}, "not_before: must be a datetime or ISO 8601 text"),
        ({"notBefore": False}, "not_before: must be a datetime or ISO 8601 text"),
        (
            {"not_before": datetime.max.replace(tzinfo=UTC)},
            "not_before: 9999-12-31 23:59:59.999999+00:00 is beyond",
        ),
        (
            {"not_before": datetime.min.replace(tzinfo=SEOUL)},
            "not_before: 0001-01-01 00:00:00+09:00 is beyond",
        ),
        ({"not_before": datetime(2026, 12, 1)}, "has no time zone"),
        ({"not_before": datetime(2026, 12, 1, tzinfo=Nowhere())}, "has no time zone"),
        ({"not_before": "2026-12-01T09:00Z", "delay": 3}, "give one of the two"),
    ],
)
def test_time_that_is_none_is_result_of_call(given: dict[str, Any], reason: str) -> None:
    draft = timed_draft({**CALL, **given})

    assert reason in draft.fault
    assert draft.call.not_before is None
    with pytest.raises(ToolInputValidationError, match="The event is not valid"):
        moment_of(given)


def test_delay_of_draft_waits_for_clock_of_redis() -> None:
    draft = timed_draft({**CALL, "delay": 2})

    assert (draft.delay_ms, draft.call.not_before, draft.fault) == (2_000, None, "")


def test_time_more_than_year_ahead_is_refused() -> None:
    far = iso_time(wall_clock() + (LONGEST_DELAY_SECONDS + 2 * 86_400) * 1000)
    near = iso_time(wall_clock() + (LONGEST_DELAY_SECONDS - 1) * 1000)

    assert "days ahead" in delay_fault(new_call("coder", "bash__exec", {}, {"not_before": far}))
    assert delay_fault(new_call("coder", "bash__exec", {}, {"not_before": near})) == ""
