"""What can be seen of the calls of a bench from outside, once all its workers have stopped."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis

from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.testing import LocalStack
from tests.conformance.bench import Bench, Submitted, hope
from tests.conformance.kinds import Cell
from tests.faults.finals import final_results
from tests.integration.task_events import monitor

#: the keys that may name a call which has ended: histories, and counts
HISTORIES = ("call:", "calls:", "trace:", "turn:", "recent-losses", "step:")


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one cell's call."""

    submitted: Submitted
    begun: int
    #: how often the middleware around it has begun
    begun_around: int
    record: CallRecord | None
    #: the lines about the call in the logs of workers and of the producer
    lines: list[JsonObject]
    #: of the metrics: ended and retried runs, and settlements outside a run, by code
    ended: Counter[str]
    retried: Counter[str]
    settled: Counter[str]
    #: how many runs have a duration among the metrics
    timed: int
    #: the types of Celery's events about the call, which several processes send
    events: list[str]
    #: how often a final result was announced to producers
    finals: int
    #: the keys that name the call and should not, and those about it that never expire
    left_in: list[str]
    without_ttl: list[str]

    @property
    def cell(self) -> Cell:
        return self.submitted.cell


@dataclass(slots=True)
class Watch:
    """What is told while the calls run."""

    events: list[dict[str, Any]]
    finals: Counter[str]
    own_lines: list[JsonObject] = field(default_factory=list)

    @classmethod
    @contextmanager
    def on(cls, stack: LocalStack) -> Iterator["Watch"]:
        """Watch during a ``with`` block; a worker must have started."""
        with ExitStack() as watching:
            events = watching.enter_context(monitor(stack.redis_url))
            watch = cls(events, watching.enter_context(final_results(stack.redis_url)))
            watching.enter_context(watch._own_log())
            yield watch

    @contextmanager
    def _own_log(self) -> Iterator[None]:
        """Keep the lines of this process, in the form of the workers' lines."""

        def keep(record: logging.LogRecord) -> bool:
            self.own_lines.append({"event": record.getMessage(), **vars(record)})
            return True

        logger = logging.getLogger("goondan_tasks.ledger.reaper")
        level = logger.level
        logger.addFilter(keep)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeFilter(keep)


def observe(bench: Bench, watch: Watch) -> dict[str, Seen]:
    """Stop the workers, and return what was seen, by the name of the cell."""
    for worker in bench.workers:
        if worker.poll() is None:
            bench.stack.stop_worker(worker)
    lines = [line for worker in bench.workers for line in _lines(bench.stack.log(worker))] + watch.own_lines
    names = {one.call.id: name for name, one in bench.submitted.items()}
    hope(lambda: len(watch.finals.keys() & names.keys()) >= len([*_answered(bench)]))
    counts, left, endless = bench.client.call_counts(), _left_in(bench), _without_ttl(bench.redis)
    seen = {}
    for name, one in bench.submitted.items():
        cell, call_id = one.cell, one.call.id
        tools = [t for w in counts.workers for t in w.tools if (t.agent, t.tool) == (cell.agent, cell.tool)]
        warm = bench.warmed_up[cell.agent, cell.tool]
        seen[name] = Seen(
            submitted=one,
            begun=bench.begun(cell.name),
            begun_around=bench.begun(f"around-{cell.name}"),
            record=None if isinstance(one.error, CallNotFoundError) else bench.client.record(call_id),
            lines=[line for line in lines if line.get("call_id") == call_id],
            ended=sum((Counter(tool.ended) for tool in tools), Counter()) - Counter(ok=warm),
            retried=sum((Counter(tool.retried) for tool in tools), Counter()),
            timed=sum(sum(tool.runs.counts) for tool in tools) - warm,
            settled=Counter({code: n for (agent, code), n in counts.settled.items() if agent == cell.agent}),
            events=[event["type"] for event in watch.events if event.get("uuid") == call_id],
            finals=watch.finals[call_id],
            left_in=left[call_id],
            without_ttl=[key for key in endless if call_id in key or cell.agent in key],
        )
    return seen


def _answered(bench: Bench) -> Iterator[Submitted]:
    return (one for one in bench.submitted.values() if one.result is not None)


def _lines(text: str) -> list[JsonObject]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _without_ttl(redis: Redis) -> list[str]:
    return [key.decode() for key in redis.scan_iter("goondan:*") if redis.ttl(key) == -1]


def _left_in(bench: Bench) -> dict[str, list[str]]:
    """Return the keys that name a call, by its id, but for histories."""
    found: dict[str, list[str]] = {one.call.id: [] for one in bench.submitted.values()}
    for key in bench.redis.scan_iter("*"):
        name = key.decode()
        if name.removeprefix("goondan:").startswith(HISTORIES):
            continue
        content = repr(_content(bench.redis, name))
        for call_id, keys in found.items():
            if call_id in content or call_id in name:
                keys.append(name)
    return found


def _content(redis: Redis, key: str) -> Any:
    read: dict[bytes, Callable[[str], Any]] = {
        b"string": redis.get,
        b"hash": redis.hgetall,
        b"list": lambda name: redis.lrange(name, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda name: redis.zrange(name, 0, -1),
        b"stream": redis.xrange,
        b"none": lambda _: None,
    }
    return read[cast(bytes, redis.type(key))](key)
