"""Counts of calls for metrics: per worker, by agent, tool and code, with bounded sets of names.

A worker counts ended calls in memory, in batches, and writes its totals to Redis with its heartbeat.
Writing them twice changes nothing. They stay for a while after the worker's end, so that the last ones are
read too. Calls that are settled outside a run are counted in Redis, by the process that settles them.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from pydantic import Field
from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.names import EVENT_TOOLS
from goondan_tasks.contract.table_rows import naming, read_row
from goondan_tasks.fleet.usage import OTHER, TOKEN_KINDS, DailyCounts, UsageStore, Written

#: the upper ends of the buckets of waits and runs, in seconds
BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)

#: how many pairs of agent and tool, and codes, one worker counts by name
MOST_NAMES = 500
MOST_CODES = 50

#: the code of successful calls, and the name for unknown tools
OK, UNKNOWN = "ok", "(unknown)"

#: the code of calls that run again because their workers died
REQUEUED = "requeued"

#: how many minutes a worker keeps the tokens of, and of how many a rate is the average
MOST_MINUTES, RATE_MINUTES = 10, 5

#: how many of the calls that were lost last are kept
MOST_LOSSES = 1000

#: how long totals are kept after the worker's end, and those of lost calls after the last one
KEPT_SECONDS = 900
LOST_KEPT_SECONDS = 7 * 86_400


class CountedCall(NamedTuple):
    """The end of one call; ``wait`` and ``run`` are seconds, if the handler began.

    ``tokens`` are those of a request to a model, by kind. ``at`` is the time of the end in ISO 8601, ``user``
    the one whom the call is for, and ``sender`` the agent that has passed work with an event.
    """

    agent: str
    tool: str
    code: str
    wait: float | None
    run: float | None
    tokens: Mapping[str, int] | None = None
    at: str = ""
    user: str = ""
    sender: str = ""


class Times(WireModel):
    """The counts for :data:`BUCKETS`, and beyond the last one, and the sum in seconds."""

    counts: tuple[int, ...]
    total: float


class ToolCounts(WireModel):
    """The totals of one agent's tool in one worker; ended calls and retries are by code."""

    agent: str
    tool: str
    ended: dict[str, int]
    retried: dict[str, int]
    limit_waits: int
    waits: Times
    runs: Times
    #: by kind, for requests to models
    tokens: dict[str, int] = Field(default_factory=dict)


class WorkerCounts(WireModel):
    """The totals of one worker process."""

    worker: str
    #: its id in the agent registry, since names may repeat
    process: str
    tools: tuple[ToolCounts, ...]
    #: the tokens that models read and wrote, by minutes: ``2026-02-01T10:00``, the latest ones
    minutes: dict[str, int] = Field(default_factory=dict)


@dataclass(slots=True)
class _Tally:
    """The totals of one agent's tool, while they grow."""

    ended: dict[str, int] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    limit_waits: int = 0
    wait_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    wait_sum: float = 0.0
    run_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    run_sum: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    #: a day, and the counts on it of the agent's calls that are for no user: most calls only add to them
    day: str = ""
    row: list[int] = field(default_factory=lambda: [0])

    def record(self, agent: str, tool: str) -> ToolCounts:
        return ToolCounts(
            agent=agent,
            tool=tool,
            ended=dict(self.ended),
            retried=dict(self.retried),
            limit_waits=self.limit_waits,
            waits=Times(counts=tuple(self.wait_counts), total=self.wait_sum),
            runs=Times(counts=tuple(self.run_counts), total=self.run_sum),
            tokens=dict(self.tokens),
        )


class TotalCounts(NamedTuple):
    """What is counted of the calls: by workers, and by those that settle calls outside a run."""

    workers: list[WorkerCounts]
    #: calls whose workers died, by agent
    lost: dict[str, int]
    #: calls that were settled outside a run, by agent and code
    settled: dict[tuple[str, str], int]
    #: ms, Redis time
    read_at: float = 0.0

    @property
    def tokens_per_minute(self) -> float:
        """The tokens that models read and wrote, on average of the last full minutes."""
        minutes = [iso_time(self.read_at - 60_000 * age)[:16] for age in range(1, RATE_MINUTES + 1)]
        return sum(one.minutes.get(name, 0) for one in self.workers for name in minutes) / RATE_MINUTES


class Settlement(NamedTuple):
    """A call that was settled outside a run, and the dead worker that had it, if any."""

    call_id: str
    agent: str
    #: :data:`OK`, :data:`REQUEUED`, or the code of its error
    code: str
    lost_by: str = ""


class CallCounts:
    """Counts the calls of this process; thread-safe.

    ``is_known`` says whether an agent has a tool, since models make names up.
    """

    def __init__(self, is_known: Callable[[str, str], object]) -> None:
        self._is_known = is_known
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._codes = {OK}
        self._minutes: dict[str, int] = {}
        self._days = DailyCounts()

    def add(self, calls: Iterable[CountedCall]) -> None:
        """Count calls that have ended."""
        with self._lock:
            for agent, tool, code, wait, run, tokens, at, user, sender in calls:
                tally = self._tallies.get((agent, tool))
                is_own = tally is not None
                if tally is None:
                    has_name = run is not None or tool in EVENT_TOOLS or self._is_known(agent, tool)
                    tally = self._tally(agent, tool if has_name else UNKNOWN)
                code = self._code(code)
                tally.ended[code] = tally.ended.get(code, 0) + 1
                if run is not None:
                    tally.run_counts[bisect_left(BUCKETS, run)] += 1
                    tally.run_sum += run
                if wait is not None:
                    tally.wait_counts[bisect_left(BUCKETS, wait)] += 1
                    tally.wait_sum += wait
                if tokens is not None:
                    self._add_tokens(tally, tokens, at[:16])
                if user or tally.day != at[:10]:
                    row = self._days.add(agent, tool, at, run is not None, code != OK, user, sender, tokens)
                    if row is not None and is_own and not user:
                        tally.day, tally.row = at[:10], row
                else:
                    tally.row[0] += 1

    def add_retry(self, agent: str, tool: str, code: str) -> None:
        """Count a run that failed and is retried."""
        with self._lock:
            tally, code = self._tally(agent, tool), self._code(code)
            tally.retried[code] = tally.retried.get(code, 0) + 1

    def add_limit_wait(self, agent: str, tool: str) -> None:
        """Count a call that has to wait at a limit."""
        with self._lock:
            self._tally(agent, tool).limit_waits += 1

    def totals(self, worker: str, process: str) -> WorkerCounts:
        """Return all totals."""
        with self._lock:
            tools = tuple(tally.record(*names) for names, tally in self._tallies.items())
            minutes = dict(self._minutes)
        return WorkerCounts(worker=worker, process=process, tools=tools, minutes=minutes)

    def unwritten_days(self) -> list[Written]:
        """Return the totals of the days that have changed since they were written."""
        with self._lock:
            return self._days.unwritten()

    def note_written(self, written: Iterable[Written], now: float) -> bool:
        """Note that totals are in Redis, whose time in ms is ``now``; return whether a new day has begun."""
        with self._lock:
            has_begun = self._days.note_written(written, now)
            if has_begun:  # the day of a tally may have been dropped
                for tally in self._tallies.values():
                    tally.day = ""
            return has_begun

    def _add_tokens(self, tally: _Tally, tokens: Mapping[str, int], minute: str) -> None:
        for kind in TOKEN_KINDS:
            tally.tokens[kind] = tally.tokens.get(kind, 0) + tokens.get(kind, 0)
        used = tokens.get("input", 0) + tokens.get("output", 0)
        self._minutes[minute] = self._minutes.get(minute, 0) + used
        if len(self._minutes) > MOST_MINUTES:
            del self._minutes[min(self._minutes)]

    def _tally(self, agent: str, tool: str) -> _Tally:
        names = (agent, tool)
        if names not in self._tallies and len(self._tallies) >= MOST_NAMES:
            names = (OTHER, OTHER)
        return self._tallies.setdefault(names, _Tally())

    def _code(self, code: str) -> str:
        if code not in self._codes:
            if len(self._codes) >= MOST_CODES:
                return OTHER
            self._codes.add(code)
        return code


class CountStore:
    """The totals in Redis."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._usage = UsageStore(redis, keys)

    def publish(self, counts: CallCounts, worker: str, process: str, *, usage_days: int) -> None:
        """Write the totals of one worker process, and once a day fold the days that are long over.

        Usage is kept for ``usage_days``.
        """
        now, row, written = redis_time(self._redis), process, counts.unwritten_days()
        seconds, totals = now // 1000, counts.totals(worker, process)
        days = [key(one.day) for one in written for key in (self._keys.usage, self._keys.handoffs)]
        with naming(self._keys.counts(row), self._keys.counted, *days), self._redis.pipeline() as pipe:
            pipe.set(self._keys.counts(row), serializer.encode(totals.to_wire()), ex=KEPT_SECONDS)
            pipe.zadd(self._keys.counted, {row: seconds})
            pipe.zremrangebyscore(self._keys.counted, "-inf", seconds - KEPT_SECONDS)
            pipe.expire(self._keys.counted, KEPT_SECONDS)
            self._usage.put(pipe, process, written, now, usage_days)
            pipe.execute()
        if counts.note_written(written, now):
            self._usage.fold(now, usage_days)

    def totals(self) -> TotalCounts:
        """Return all counts."""
        return TotalCounts(self.workers(), self.lost(), self.settled(), redis_time(self._redis))

    def workers(self) -> list[WorkerCounts]:
        """Return the totals of all workers that are alive or ended recently."""
        rows = cast("list[bytes]", self._redis.zrange(self._keys.counted, 0, -1))
        names = [row.decode(errors="replace") for row in rows]
        found = self._redis.mget([self._keys.counts(name) for name in names]) if names else []
        totals = zip(names, cast("list[bytes | None]", found), strict=True)
        read = (read_row(WorkerCounts, row, f"counts of worker process {name!r}") for name, row in totals)
        return list(filter(None, read))

    def add_settled(self, settled: Settlement, count: int = 1) -> None:
        """Count calls that were settled outside a run; keep one for a while if its worker had died."""
        keys, now = self._keys, redis_time(self._redis) if settled.lost_by else 0.0
        with self._redis.pipeline() as pipe:
            pipe.hincrby(keys.settled_calls, f"{settled.agent} {settled.code}", count)
            pipe.expire(keys.settled_calls, LOST_KEPT_SECONDS)
            if settled.lost_by:
                pipe.hincrby(keys.lost_calls, settled.agent, 1)
                pipe.expire(keys.lost_calls, LOST_KEPT_SECONDS)
                pipe.zadd(keys.recent_losses, {" ".join(settled): now})
                pipe.zremrangebyrank(keys.recent_losses, 0, -MOST_LOSSES - 1)
                pipe.expire(keys.recent_losses, LOST_KEPT_SECONDS)
            pipe.execute()

    def lost(self) -> dict[str, int]:
        """Return the number of lost calls by agent."""
        return {agent: count for (agent,), count in self._counts(self._keys.lost_calls, 1).items()}

    def settled(self) -> dict[tuple[str, str], int]:
        """Return the number of calls that were settled outside a run, by agent and code."""
        found = self._counts(self._keys.settled_calls, 2)
        return {(agent, code): count for (agent, code), count in found.items()}

    def recent_losses(self, seconds: float) -> list[Settlement]:
        """Return the calls that were lost and settled in the last ``seconds``, the earliest first."""
        since = redis_time(self._redis) - seconds * 1000
        rows = cast("list[bytes]", self._redis.zrangebyscore(self._keys.recent_losses, since, "+inf"))
        parts = (row.decode(errors="replace").split(" ", 3) for row in rows)
        return [Settlement(*names) for names in parts if len(names) == len(Settlement._fields)]

    def _counts(self, key: str, names: int) -> dict[tuple[str, ...], int]:
        """Read counts by names that are separated by spaces; a damaged one is left out."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(key))
        read = {tuple(name.decode(errors="replace").split(" ")): count for name, count in found.items()}
        return {name: int(count) for name, count in read.items() if len(name) == names and count.isdigit()}
