"""What was used on each day, and how work went between agents: counted by workers, kept for some months.

A worker process counts in memory and writes the totals of a day into its field of the day's hashes, with its
heartbeat. A write that is repeated, or lost and followed by the next one, changes nothing; a process that is
killed loses what it has counted since its last heartbeat. A process writes the day of Redis and the day
before. Days that no process writes any more are folded: the fields of all processes become one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import Field
from redis import Redis
from redis.client import Pipeline

from broker_config import serializer
from broker_config.connections import rows_of
from broker_config.keys import Keys
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.names import EVENT_TOOLS, MODEL_TOOLS, SYSTEM_TOOL
from goondan_tasks.contract.table_rows import read_row
from goondan_tasks.contract.wording import hint, member

#: of a model's tokens; ``input`` includes ``cached``, and ``output`` includes ``reasoning``
TOKEN_KINDS = ("input", "cached", "output", "reasoning")

#: the names for what is beyond a bound
OTHER = "(other)"

#: how many combinations of agent, model and user one process counts a day, and a folded day has
MOST_ROWS, MOST_FOLDED = 500, 2_000
#: how many pairs of agents one process counts a day
MOST_EDGES = 500
#: how many characters of a user's name are kept
LONGEST_USER = 128

#: a day is folded when it is this old: until a day less, hand-offs can be read by the hour
FOLD_DAYS = 3
MOST_HOURS = 24 * (FOLD_DAYS - 1)
#: the most days that can be asked for
MOST_DAYS = 400

#: by what usage can be grouped
GROUPS = ("day", "agent", "model", "user")

_DAY_MS = 86_400_000
_SYSTEM = f"{SYSTEM_TOOL}__"
#: the field of a folded day; a process's id is never empty
_FOLDED = b""


class Usage(WireModel):
    """What was used: of a day, an agent, a Model and a user, as far as the answer is grouped by them.

    ``calls`` are calls of tools, and ``requests`` those to models, as far as they began. ``input`` includes
    ``cached``, and ``output`` includes ``reasoning``.
    """

    #: ``2026-02-01``, UTC
    day: str | None = None
    agent: str | None = None
    #: the Model's name in the bundle; empty for what is no request to a model
    model: str | None = None
    #: ``auth.subjects.user``; empty if there is none
    user: str | None = None
    calls: int = 0
    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


class HandoffCount(WireModel):
    """How often one agent has passed work to another, and how often that failed."""

    #: ``client`` for work from outside
    from_agent: str = Field(alias="from")
    to: str
    count: int
    errors: int


class Handoffs(WireModel):
    """The hand-offs of the last hours: requests and events that were handled since a full hour."""

    since: str
    seconds: float
    edges: tuple[HandoffCount, ...]


#: the counts of a row of usage, in the order of their fields
_COUNTS = ("calls", "requests", *TOKEN_KINDS)


class UsageRow(WireModel):
    """The counts of one agent, Model and user, in the order of :data:`_COUNTS`."""

    agent: str
    model: str
    user: str
    counts: tuple[int, ...] = Field(min_length=len(_COUNTS), max_length=len(_COUNTS))


class EdgeRow(WireModel):
    """The hand-offs from one agent to another by hour, ``00`` to ``23``: how many, and how many failed."""

    from_agent: str = Field(alias="from")
    to: str
    hours: dict[str, tuple[int, int]]


class DayUsage(WireModel):
    """What one process has counted on one day, or what a folded day has of all."""

    rows: tuple[UsageRow, ...]


class DayHandoffs(WireModel):
    """The hand-offs that one process has counted on one day."""

    rows: tuple[EdgeRow, ...]


DayRecord = TypeVar("DayRecord", DayUsage, DayHandoffs)


class Written(NamedTuple):
    """The totals of a day as they are to be written, and how many calls and hand-offs they have."""

    day: str
    size: int
    usage: DayUsage
    handoffs: DayHandoffs


@dataclass(slots=True)
class _Day:
    rows: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    edges: dict[tuple[str, str], dict[str, list[int]]] = field(default_factory=dict)
    #: how many calls and hand-offs were written
    written: int = 0

    @property
    def size(self) -> int:
        """How many calls, requests and hand-offs were counted."""
        handoffs = (one[0] for hours in self.edges.values() for one in hours.values())
        return sum(row[0] + row[1] for row in self.rows.values()) + sum(handoffs)

    def handoffs(self) -> DayHandoffs:
        rows = [
            EdgeRow(from_agent=sender, to=to, hours={hour: (one[0], one[1]) for hour, one in hours.items()})
            for (sender, to), hours in self.edges.items()
        ]
        return DayHandoffs(rows=tuple(rows))


class DailyCounts:
    """The counts of one process by day; its owner sees to it that one thread at a time uses it."""

    def __init__(self) -> None:
        self._days: dict[str, _Day] = {}
        #: the last day that is not counted any more, and the one that its calls are counted on
        self._closed = self._today = ""

    def add(
        self,
        agent: str,
        tool: str,
        at: str,
        has_run: bool,
        is_error: bool,
        user: str,
        sender: str,
        tokens: Mapping[str, int] | None,
    ) -> list[int] | None:
        """Count a call or an event that ended ``at`` an ISO 8601 time; ``sender`` has sent the event.

        Return the counts of a tool call: others of the agent and user on that day may be added to the first.
        """
        day = self._days.get(at[:10])
        if day is None:
            day = self._open(at[:10])
        model = ""
        if tool.startswith(_SYSTEM):
            if tool in EVENT_TOOLS:
                if sender:
                    _add_handoff(day, sender, agent, at, is_error=is_error)
                return None
            if has_run and tool.startswith(MODEL_TOOLS):
                model = tool.removeprefix(MODEL_TOOLS)
        row = _row(day, agent, model, user)
        if not model:
            row[0] += 1
            return row
        row[1] += 1
        for place, kind in enumerate(TOKEN_KINDS, 2):
            row[place] += (tokens or {}).get(kind, 0)
        return None

    def unwritten(self) -> list[Written]:
        """Return the totals of the days that have changed since they were written."""
        return [
            Written(name, size, _usage(day.rows), day.handoffs())
            for name, day in self._days.items()
            if (size := day.size) > day.written
        ]

    def note_written(self, written: Iterable[Written], now: float) -> bool:
        """Note that totals are in Redis, and drop the days before yesterday; return whether a day began."""
        today, yesterday, before = day_of(now), day_of(now - _DAY_MS), self._today
        for one in written:
            if one.day in self._days:
                self._days[one.day].written = one.size
        for name in [name for name in self._days if name < yesterday]:
            del self._days[name]
            self._closed = max(self._closed, name)
        self._today = today
        return today != before

    def _open(self, name: str) -> _Day:
        # a day that was dropped would begin at 0 again, and take the place of what was written
        return self._days.setdefault(self._today if name <= self._closed else name, _Day())


def _row(day: _Day, agent: str, model: str, user: str) -> list[int]:
    row = day.rows.get((agent, model, user))
    if row is None:
        user = user[:LONGEST_USER] if len(day.rows) < MOST_ROWS else OTHER
        row = day.rows.setdefault((agent, model, user), [0] * len(_COUNTS))
    return row


def _add_handoff(day: _Day, sender: str, agent: str, at: str, *, is_error: bool) -> None:
    edge = sender, agent
    if edge not in day.edges and len(day.edges) >= MOST_EDGES:
        edge = OTHER, OTHER
    counts = day.edges.setdefault(edge, {}).setdefault(at[11:13], [0, 0])
    counts[0] += 1
    counts[1] += is_error


class UsageStore:
    """The counts of all days in Redis. Methods block, and may raise ``redis.exceptions.RedisError``."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis, self._keys = redis, keys

    def put(
        self, pipe: Pipeline, process: str, written: Iterable[Written], now: float, kept_days: int
    ) -> None:
        """Add the commands that write totals to a transaction; days before yesterday are not written.

        They may have been folded: a process that was suspended for days would be counted twice.
        """
        yesterday = day_of(now - _DAY_MS)
        for day, _, usage, handoffs in written:
            for key, record, days in (
                (self._keys.usage(day), usage, kept_days),
                (self._keys.handoffs(day), handoffs, FOLD_DAYS),
            ):
                if record.rows and day >= yesterday:
                    pipe.hset(key, process, serializer.encode(record.to_wire()))
                    pipe.expire(key, (days + 1) * 86_400)

    def fold(self, now: float, kept_days: int) -> None:
        """Fold the days that no process writes any more; others may do so at the same time."""
        days = [day_of(now - _DAY_MS * age) for age in range(FOLD_DAYS, kept_days + 1)]
        with self._redis.pipeline(transaction=False) as pipe:
            for day in days:
                pipe.hlen(self._keys.usage(day))
            sizes = rows_of(pipe)
        for day, size in zip(days, sizes, strict=True):
            if size is not None and size > 1:
                self._fold(day)

    def _fold(self, day: str) -> None:
        key = self._keys.usage(day)

        def fold(pipe: Pipeline) -> None:
            rows = _readable(DayUsage, key, cast("dict[bytes, bytes]", pipe.hgetall(key)))
            gone = [name for name in rows if name != _FOLDED]
            if gone:
                pipe.multi()
                pipe.hset(key, _FOLDED, serializer.encode(_folded(rows.values()).to_wire()))
                pipe.hdel(key, *gone)

        self._redis.transaction(fold, key)  # repeats if another process folds it meanwhile

    def usage(self, now: float, days: int, by: Sequence[str]) -> list[Usage]:
        """Return what was used on the last ``days``, today included, in groups and ordered by them."""
        totals: dict[tuple[str, ...], list[int]] = {}
        for day, counted in self._read(DayUsage, self._keys.usage, now, days):
            for row in counted.rows:
                names = {"day": day, "agent": row.agent, "model": row.model, "user": row.user}
                _add(totals.setdefault(tuple(names[one] for one in by), [0] * len(_COUNTS)), row.counts)
        return [
            Usage.model_validate(
                {**dict(zip(by, group, strict=True)), **dict(zip(_COUNTS, counts, strict=True))}
            )
            for group, counts in sorted(totals.items())
        ]

    def handoffs(self, now: float, hours: int) -> Handoffs:
        """Return the hand-offs of the hour that is under way, and of the ``hours`` before it."""
        since = (now // 3_600_000 - hours) * 3_600_000
        first = iso_time(since)
        totals: dict[tuple[str, str], list[int]] = {}
        for day, counted in self._read(DayHandoffs, self._keys.handoffs, now, 1 + (hours + 23) // 24):
            for row in counted.rows:
                found = [counts for hour, counts in row.hours.items() if f"{day}T{hour}" >= first[:13]]
                for counts in found:
                    _add(totals.setdefault((row.from_agent, row.to), [0, 0]), counts)
        edges = (
            HandoffCount(from_agent=sender, to=to, count=count, errors=errors)
            for (sender, to), (count, errors) in sorted(totals.items())
        )
        return Handoffs(since=first, seconds=round((now - since) / 1000, 3), edges=tuple(edges))

    def _read(
        self, kind: type[DayRecord], key_of: Callable[[str], str], now: float, days: int
    ) -> Iterable[tuple[str, DayRecord]]:
        """Return what each process has counted on the last ``days``, the first day first."""
        names = [day_of(now - _DAY_MS * age) for age in reversed(range(days))]
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(key_of(name))
            found: list[Any] = rows_of(pipe)
        return [
            (day, row)
            for day, rows in zip(names, found, strict=True)
            for row in _readable(kind, key_of(day), rows or {}).values()
        ]


def groups_of(text: str) -> tuple[str, ...]:
    """Read by what usage is grouped: names of :data:`GROUPS`, separated by commas.

    Raises:
        ToolInputValidationError: one is unknown, or there is none.
    """
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise ToolInputValidationError(
            f"Usage cannot be grouped by {unknown[0][:100]!r}.",
            suggestion=hint(unknown[0], GROUPS, f"Name some of {', '.join(GROUPS)}, separated by commas."),
        )
    return tuple(name for name in GROUPS if name in names)


def user_of(auth: object) -> str:
    """Return the user whom a call with this ``auth`` is for; empty if there is none."""
    user = member(member(auth, "subjects"), "user")
    return user if isinstance(user, str) else ""


def day_of(now: float) -> str:
    """Return the day of a time in ms: ``2026-02-01``, UTC."""
    return iso_time(now)[:10]


def _readable(kind: type[DayRecord], key: str, rows: Mapping[bytes, bytes]) -> dict[bytes, DayRecord]:
    read = {name: read_row(kind, row, f"{key} {name!r}") for name, row in rows.items()}
    return {name: row for name, row in read.items() if row is not None}


def _usage(rows: Mapping[tuple[str, str, str], Sequence[int]]) -> DayUsage:
    return DayUsage(
        rows=tuple(
            UsageRow(agent=agent, model=model, user=user, counts=tuple(counts))
            for (agent, model, user), counts in rows.items()
        )
    )


def _folded(counted: Iterable[DayUsage]) -> DayUsage:
    """Add up usage, with the users of the least rows as one if there are too many."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for one in counted:
        for row in one.rows:
            _add(totals.setdefault((row.agent, row.model, row.user), [0] * len(_COUNTS)), row.counts)
    largest = sorted(totals.items(), key=lambda row: -sum(row[1]))
    kept = dict(islice(largest, MOST_FOLDED))
    for (agent, model, _), counts in largest[MOST_FOLDED:]:
        _add(kept.setdefault((agent, model, OTHER), [0] * len(_COUNTS)), counts)
    return _usage(kept)


def _add(totals: list[int], counts: Iterable[int]) -> None:
    for place, count in enumerate(counts):
        totals[place] += count
