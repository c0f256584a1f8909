"""What each worker counts of its calls, for metrics: by agent, tool and code, with bounded sets of names.

A worker counts in its own memory, a batch of ended calls at a time, and writes its totals to Redis with its
heartbeat. To write them twice changes nothing. They stay for a while after it has ended, so that the last
ones are read too. Calls lost with their worker are counted in Redis, by the process that settles them.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from pydantic import Field
from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from goondan_tasks.messages import ToolCallResult, WireModel, epoch_milliseconds
from goondan_tasks.names import EVENT_TOOLS

#: the upper ends of the buckets of waits and runs, in seconds
BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)

#: so many pairs of agent and tool, and codes, are counted by name in one worker
MOST_NAMES = 500
MOST_CODES = 50

#: of a model's tokens: those it reads, among these those from a cache; those it writes, among these reasoning
TOKEN_KINDS = ("input", "cached", "output", "reasoning")

#: the code of calls that have ended well, and the names of what is not counted by its own
OK, OTHER, UNKNOWN = "ok", "(other)", "(unknown)"

#: how long the totals of a worker that has ended are kept, and those of lost calls after the last one
KEPT_SECONDS = 900
LOST_KEPT_SECONDS = 7 * 86_400


class CountedCall(NamedTuple):
    """The end of one call; ``wait`` and ``run`` are seconds, if a handler has begun.

    ``tokens`` are those of a request to a model, by kind.
    """

    agent: str
    tool: str
    code: str
    wait: float | None
    run: float | None
    tokens: Mapping[str, int] | None = None

    @classmethod
    def of(cls, result: ToolCallResult) -> "CountedCall":
        """Return what is counted of a result; only a first run has waited in the queue alone."""
        meta, code = result.meta, OK if result.error is None else result.error.code
        wait = run = None
        if meta.started_at is not None and meta.duration_ms is not None:
            run = meta.duration_ms / 1000
            if meta.queued_at is not None and meta.attempt == 1:
                wait = (epoch_milliseconds(meta.started_at) - epoch_milliseconds(meta.queued_at)) / 1000
        # those of a Turn are the sum of these
        tokens = None if result.tool_name in EVENT_TOOLS else meta.usage
        return cls(meta.agent_name, result.tool_name, code, wait, run, tokens)


class Times(WireModel):
    """How many fell into each of :data:`BUCKETS`, and beyond the last, and their sum in seconds."""

    counts: tuple[int, ...]
    total: float


class ToolCounts(WireModel):
    """The totals of one agent's tool in one worker: by code, the calls that have ended and the retries."""

    agent: str
    tool: str
    ended: dict[str, int]
    retried: dict[str, int]
    limit_waits: int
    waits: Times
    runs: Times
    #: of a model's tool, by kind
    tokens: dict[str, int] = Field(default_factory=dict)


class WorkerCounts(WireModel):
    """The totals of one worker process."""

    worker: str
    #: its row in the agent registry: names of workers may repeat
    process: str
    tools: tuple[ToolCounts, ...]


class _Tally:
    """The totals of one agent's tool, while they grow."""

    __slots__ = (
        "ended",
        "limit_waits",
        "retried",
        "run_counts",
        "run_sum",
        "tokens",
        "wait_counts",
        "wait_sum",
    )

    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        self.retried: dict[str, int] = {}
        self.limit_waits = 0
        self.wait_counts = [0] * (len(BUCKETS) + 1)
        self.run_counts = [0] * (len(BUCKETS) + 1)
        self.wait_sum = self.run_sum = 0.0
        self.tokens: dict[str, int] = {}

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


class CallCounts:
    """Counts the calls of this process; any thread may use it.

    ``is_known`` says of an agent and a tool whether there is one: models make names up.
    """

    def __init__(self, is_known: Callable[[str, str], object]) -> None:
        self._is_known = is_known
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._codes = {OK}

    def add(self, calls: Iterable[CountedCall]) -> None:
        """Count calls that have ended."""
        with self._lock:
            for agent, tool, code, wait, run, tokens in calls:
                tally = self._tallies.get((agent, tool))
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
                    for kind in TOKEN_KINDS:
                        tally.tokens[kind] = tally.tokens.get(kind, 0) + tokens.get(kind, 0)

    def add_retry(self, agent: str, tool: str, code: str) -> None:
        """Count a run that has failed and is tried again."""
        with self._lock:
            tally, code = self._tally(agent, tool), self._code(code)
            tally.retried[code] = tally.retried.get(code, 0) + 1

    def add_limit_wait(self, agent: str, tool: str) -> None:
        """Count a call that has to wait at a limit."""
        with self._lock:
            self._tally(agent, tool).limit_waits += 1

    def totals(self, worker: str, process: str) -> WorkerCounts:
        """Return all of it."""
        with self._lock:
            tools = tuple(tally.record(*names) for names, tally in self._tallies.items())
        return WorkerCounts(worker=worker, process=process, tools=tools)

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

    def publish(self, totals: WorkerCounts) -> None:
        """Write the totals of one worker process."""
        row = totals.process
        seconds = redis_time(self._redis) // 1000
        with self._redis.pipeline() as pipe:
            pipe.set(self._keys.counts(row), serializer.encode(totals.to_wire()), ex=KEPT_SECONDS)
            pipe.zadd(self._keys.counted, {row: seconds})
            pipe.zremrangebyscore(self._keys.counted, "-inf", seconds - KEPT_SECONDS)
            pipe.expire(self._keys.counted, KEPT_SECONDS)
            pipe.execute()

    def workers(self) -> list[WorkerCounts]:
        """Return the totals of each worker that lives, or has lately."""
        rows = cast("list[bytes]", self._redis.zrange(self._keys.counted, 0, -1))
        found = self._redis.mget([self._keys.counts(row.decode()) for row in rows]) if rows else []
        return [WorkerCounts.from_wire(serializer.decode(one)) for one in cast("list[Any]", found) if one]

    def add_lost(self, agent: str) -> None:
        """Count a call of an agent whose worker has died with it."""
        with self._redis.pipeline() as pipe:
            pipe.hincrby(self._keys.lost_calls, agent, 1)
            pipe.expire(self._keys.lost_calls, LOST_KEPT_SECONDS)
            pipe.execute()

    def lost(self) -> dict[str, int]:
        """Return how many calls were lost so, by agent."""
        found = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.lost_calls))
        return {agent.decode(): int(count) for agent, count in found.items()}
