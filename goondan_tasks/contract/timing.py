"""When a schedule is due: texts of cron, and intervals, as rows of slots.

A slot is a time at which a schedule is due, in ms since the epoch; it is a whole second. ``cronsim`` reads
the texts and steps through calendars, with the hours of a clock that never changes. What a zone's clock does
is decided here, by the rules of Debian's cron, for texts of 5 and of 6 fields alike:

- A text whose minutes and hours both begin without ``*`` names times of day. A time that the clock skips is
  due at the first second after the gap, several such times once. A time that comes twice is due the first
  time.
- Any other text repeats through the day. It is due whenever the clock shows a time that fits: not at all
  within a gap, and both times within an hour that comes twice.

An interval counts real time from the epoch, so ``15m`` is due at the quarters of an hour of UTC.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from zoneinfo import ZoneInfo

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_INTERVAL = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
#: the longest interval, and the longest jitter, in seconds
LONGEST_INTERVAL, LONGEST_JITTER = 366 * 86_400, 86_400
#: in characters; a list of all minutes and seconds has 340
LONGEST_CRON = 1_000
#: two changes of a zone's clock are further apart; in seconds
_APART = 7 * 86_400

_FIELDS = (
    "Write 5 fields, minute hour day month weekday, such as '0 9 * * MON-FRI'; or 6, with the second first."
)


class TimingError(ValueError):
    """A text says no time; ``suggestion`` says what to write."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class Timing:
    """The slots of a schedule: those of a text of cron in a zone, or every so many seconds."""

    cron: str = ""
    zone: str = "UTC"
    every_seconds: int = 0

    def after(self, moment: float) -> Iterator[int]:
        """Yield the slots after a moment (ms), in order; no more if none follows in 50 years."""
        second = int(moment // 1000)
        if self.every_seconds:
            found = _intervals(self.every_seconds, second)
        elif _names_times_of_day(self.cron):
            found = _times_of_day(self.cron, ZoneInfo(self.zone), second)
        else:
            found = _repeated(self.cron, ZoneInfo(self.zone), second)
        return (slot * 1000 for slot in found)

    def next(self, moment: float) -> int | None:
        """Return the first slot after a moment (ms)."""
        return next(self.after(moment), None)


def require_cron(text: str) -> str:
    """Check a text of cron and return it.

    Raises:
        TimingError: it is none, or no time ever fits it.
    """
    from cronsim import CronSimError

    if len(text) > LONGEST_CRON:
        raise TimingError(f"a text of cron has {LONGEST_CRON} characters at most", _FIELDS)
    try:
        first = Timing(text).next(0)
    except CronSimError as error:
        reason = str(error)
        raise TimingError(
            f"'{text[:80]}' is no text of cron: {reason[:1].lower()}{reason[1:]}", _FIELDS
        ) from error
    if first is None:
        raise TimingError(f"no day ever fits '{text[:80]}'", "Correct the days and months.")
    return text


def require_zone(name: str) -> str:
    """Check the name of a time zone and return it.

    Raises:
        TimingError: there is no such zone.
    """
    suggestion = "Write a name of the IANA database, such as Europe/Berlin, or UTC."
    if not _ZONE.fullmatch(name):  # it is the path of a file
        raise TimingError(f"'{name[:80]}' is not the name of a time zone", suggestion)
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # OSError: it is a folder of the database
        raise TimingError(f"there is no time zone '{name[:80]}'", suggestion) from error
    return name


def interval_seconds(text: str) -> int:
    """Return the seconds of an interval such as ``90s``, ``15m``, ``12h`` or ``1d``.

    Raises:
        TimingError: it is none, or longer than a year.
    """
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise TimingError(f"'{text[:80]}' is not an interval", "Write a number of s, m, h or d, such as 15m.")
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds > LONGEST_INTERVAL:
        raise TimingError(f"'{text}' is longer than a year", "Write a text of cron instead.")
    return seconds


def jitter_ms(name: str, slot: int, most_seconds: int) -> int:
    """Return how long after a slot the schedule of that name is due, in ms: the same in every process."""
    if not most_seconds:
        return 0
    digest = sha256(f"{name}:{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (most_seconds * 1000 + 1)


# All below are seconds since the epoch.


def _intervals(every: int, after: int) -> Iterator[int]:
    slot = after - after % every
    while True:
        slot += every
        yield slot


def _names_times_of_day(cron: str) -> bool:
    fields = cron.split()
    return not any(field.startswith("*") for field in fields[-5:-3])


def _times_of_day(cron: str, zone: ZoneInfo, after: int) -> Iterator[int]:
    last = after
    for local in _local_times(cron, after, _offset(zone, after)):
        slot = _first_instant(local, zone)
        if slot > last:  # several times within a gap are one slot; those that come again have been due before
            yield slot
            last = slot


def _repeated(cron: str, zone: ZoneInfo, after: int) -> Iterator[int]:
    known = after  # the offset is the one of this second
    while True:
        offset = _offset(zone, known)
        change = None
        for local in _local_times(cron, after, offset):
            slot = local - offset
            change = _next_change(zone, known, slot)
            if change is not None:  # from there on, the clock shows other times
                after, known = change - 1, change
                break
            yield slot
            after = known = slot
        if change is None:
            return


def _local_times(cron: str, after: int, offset: int) -> Iterator[int]:
    """Yield what a clock with a fixed offset shows when it fits, as though that were UTC."""
    from cronsim import CronSim

    for local in CronSim(cron, datetime.fromtimestamp(after + offset, UTC)):
        yield round(local.timestamp())


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, zone).utcoffset() or timedelta()
    return round(offset.total_seconds())


def _first_instant(local: int, zone: ZoneInfo) -> int:
    """Return when a clock first shows a local time, or, if it skips that, the first second after the gap."""
    shown = datetime.fromtimestamp(local, UTC).replace(tzinfo=zone)
    first, second = (round(shown.replace(fold=fold).timestamp()) for fold in (0, 1))
    if first <= second:
        return first
    return (
        _next_change(zone, second, first) or first
    )  # within a gap the later offset gives the earlier instant


def _next_change(zone: ZoneInfo, begin: int, end: int) -> int | None:
    """Return the first second after ``begin``, up to ``end``, with another offset than the one before."""
    before = _offset(zone, begin)
    while begin < end:
        reached = min(end, begin + _APART)
        if _offset(zone, reached) != before:
            while reached - begin > 1:
                middle = (begin + reached) // 2
                begin, reached = (middle, reached) if _offset(zone, middle) == before else (begin, middle)
            return reached
        begin = reached
    return None
