"""Slots: texts of cron and intervals, and what they are when a zone's clock is changed."""

import itertools
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goondan_tasks.contract.timing import (
    Timing,
    TimingError,
    interval_seconds,
    jitter_ms,
    require_cron,
    require_zone,
)

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def local_slots(cron: str, zone: str, since: str, count: int) -> list[str]:
    """Return slots as the zone's clock shows them, with its offset, from a local time on."""
    begin = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000
    slots = itertools.islice(Timing(cron, zone).after(begin), count)
    shown = (datetime.fromtimestamp(slot / 1000, ZoneInfo(zone)) for slot in slots)
    return [one.strftime("%m-%d %H:%M%z") for one in shown]


@pytest.mark.parametrize(
    ("zone", "cron", "since", "expected"),
    [
        # the clock skips 02:00 to 02:59
        (BERLIN, "30 2 * * *", "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07T12:00", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        # half an hour: 02:00 to 02:29
        (LORD_HOWE, "15 2 * * *", "2026-10-03T12:00", ["10-04 02:30+1100", "10-05 02:15+1100"]),
        (BERLIN, "0,30 2,3 * * *", "2026-03-28T12:00", ["03-29 03:00+0200", "03-29 03:30+0200"]),
        (NEW_YORK, "0 30 2 * * *", "2026-03-07T12:00", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        (BERLIN, "*/30 * * * *", "2026-03-29T01:00", ["03-29 01:30+0100", "03-29 03:00+0200"]),
        (BERLIN, "*/20 2 * * *", "2026-03-28T12:00", ["03-30 02:00+0200", "03-30 02:20+0200"]),
        (LORD_HOWE, "*/15 2 * * *", "2026-10-03T12:00", ["10-04 02:30+1100", "10-04 02:45+1100"]),
        (NEW_YORK, "45 * * * *", "2026-03-08T01:00", ["03-08 01:45-0500", "03-08 03:45-0400"]),
    ],
)
def test_slots_when_clock_goes_forward(zone: str, cron: str, since: str, expected: list[str]) -> None:
    assert local_slots(cron, zone, since, 2) == expected


@pytest.mark.parametrize(
    ("zone", "cron", "since", "expected"),
    [
        # 02:00 to 02:59 comes twice
        (BERLIN, "30 2 * * *", "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31T12:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        # half an hour: 01:30 to 01:59
        (LORD_HOWE, "45 1 * * *", "2026-04-04T12:00", ["04-05 01:45+1100", "04-06 01:45+1030"]),
        (BERLIN, "15 30 2 * * *", "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        (BERLIN, "30 * * * *", "2026-10-25T02:00", ["10-25 02:30+0200", "10-25 02:30+0100"]),
        (NEW_YORK, "*/40 1 * * *", "2026-11-01T01:30", ["11-01 01:40-0400", "11-01 01:00-0500"]),
        (LORD_HOWE, "45 * * * *", "2026-04-05T01:30", ["04-05 01:45+1100", "04-05 01:45+1030"]),
        (LORD_HOWE, "*/10 2 * * *", "2026-04-04T12:00", ["04-05 02:00+1030", "04-05 02:10+1030"]),
    ],
)
def test_slots_when_clock_goes_back(zone: str, cron: str, since: str, expected: list[str]) -> None:
    assert local_slots(cron, zone, since, 2) == expected


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "13 * * * *", "*/20 1-3 * * *", "* 2 * * SUN", "0 */25 * * * *"]),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata", "Africa/Casablanca", "UTC"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
)
def test_repeated_slots_are_times_at_which_clock_fits(cron: str, zone: str, since: datetime) -> None:
    """Compare with a search through all minutes."""
    from cronsim import CronSim

    second = int(since.replace(tzinfo=UTC).timestamp())
    slots = list(
        itertools.takewhile(
            lambda one: one <= (second + 86_400) * 1000, Timing(cron, zone).after(second * 1000)
        )
    )

    def fits(at: int) -> bool:
        shown = datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None)
        return next(CronSim(cron, shown - timedelta(seconds=1))) == shown

    minutes = range(second - second % 60 + 60, second + 86_401, 60)
    assert slots == [at * 1000 for at in minutes if fits(at)]


def test_intervals_count_from_epoch() -> None:
    slots = Timing(every_seconds=900).after(1_790_000_123_456)

    assert [next(slots) % 900_000 for _ in range(3)] == [0, 0, 0]
    assert (
        Timing(every_seconds=900).next(1_790_000_100_000)
        == 1_790_000_100_000 - 1_790_000_100_000 % 900_000 + 900_000
    )


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("1d", 86_400)])
def test_interval_has_unit(text: str, seconds: int) -> None:
    assert interval_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "15", "1.5h", "-1m", "15 m", "400d", "99999999999s", "1h30m"])
def test_text_that_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(TimingError):
        interval_seconds(text)


@pytest.mark.parametrize(
    "text", ["0 9 * * MON-FRI", "*/5 * * * *", "0 0 L * *", "0 0 * * 5#3", "0 0 29 2 *", "15 0 9 * * *"]
)
def test_texts_of_cron_are_accepted(text: str) -> None:
    assert require_cron(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("61 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("@daily", "wrong number of fields"),
        ("0 9 * * mon-fry", "bad day-of-week"),
        ("0 0 * 2 MON#5,MON#5" * 60, "characters at most"),
    ],
)
def test_invalid_cron_is_refused_with_reason(text: str, message: str) -> None:
    with pytest.raises(TimingError, match=message):
        require_cron(text)


@pytest.mark.parametrize(
    "name", ["", "Mars/Base", "Europe", "../etc/passwd", "/etc/localtime", "Europe/Berlin\0"]
)
def test_name_that_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(TimingError):
        require_zone(name)


def test_zones_are_known_without_those_of_system() -> None:
    code = (
        "from goondan_tasks.contract.timing import require_zone; print(require_zone('Australia/Lord_Howe'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONTZPATH": "", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "Australia/Lord_Howe\n", done.stderr


def test_jitter_is_same_in_every_process_and_spreads() -> None:
    delays = [jitter_ms("nightly", slot, 60) for slot in range(0, 3_600_000, 1000)]

    assert delays == [jitter_ms("nightly", slot, 60) for slot in range(0, 3_600_000, 1000)]
    assert 0 <= min(delays) < 1_000
    assert 59_000 < max(delays) <= 60_000
    assert jitter_ms("nightly", 0, 0) == 0
