"""How an agent's queue stands: what ``goondan queues`` shows."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import call_queue
from goondan_tasks.messages import WireModel
from goondan_tasks.roster import WorkerRecord


class QueueStatus(WireModel):
    """One agent's queue (DESIGN "Commands"). ``backlog`` waits for a worker, ``running`` is in hand."""

    agent: str
    queue: str
    backlog: int
    running: int
    #: wait for a limit or an idempotencyKey, outside the queue
    waiting_for_limit: int = 0
    #: the age of the call that has waited longest
    oldest_seconds: float | None = None
    workers: int


def read_queues(
    redis: Redis, keys: Keys, agents: Iterable[str], workers: Iterable[WorkerRecord]
) -> list[QueueStatus]:
    """Read how the queues of ``agents`` stand, in two trips."""
    names = list(agents)
    consumers = Counter(agent for worker in workers for agent in worker.agents)
    with redis.pipeline(transaction=False) as pipe:
        for agent in names:
            pipe.llen(call_queue(agent))
            pipe.zcard(keys.running(agent))
            pipe.zcard(keys.waiting(agent))
            pipe.lindex(call_queue(agent), -1)
            pipe.zrange(keys.waiting(agent), 0, 0, withscores=True)
        answers = pipe.execute()
    rows = [answers[start : start + 5] for start in range(0, len(answers), 5)]
    ages = _ages(redis, keys, [row[3:] for row in rows])
    return [
        QueueStatus(
            agent=agent,
            queue=call_queue(agent),
            backlog=backlog,
            running=running,
            waiting_for_limit=waiting,
            oldest_seconds=age,
            workers=consumers[agent],
        )
        for agent, (backlog, running, waiting, *_), age in zip(names, rows, ages, strict=True)
    ]


def _ages(redis: Redis, keys: Keys, oldest: list[Any]) -> list[float | None]:
    """Return the age of the oldest call of each: of the next message, and of the next that waits."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for message, _ in oldest:
            pipe.hget(keys.call(_call_id(message)), "queuedAt")
        (seconds, _), *queued_at = pipe.execute()
    return [
        _age(seconds, [*([float(at)] if at else []), *(since for _, since in waiting)])
        for at, (_, waiting) in zip(queued_at, oldest, strict=True)
    ]


def _age(now_seconds: int, since: list[float]) -> float | None:
    return max(0.0, round(now_seconds - min(since) / 1000, 1)) if since else None


def _call_id(message: bytes | None) -> str:
    try:
        return str(serializer.decode(message)["headers"]["id"]) if message else ""
    except (serializer.NotJsonError, KeyError, TypeError):
        return ""  # not a Celery message; a worker will say so
