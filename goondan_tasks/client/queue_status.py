"""How an agent's queue stands: what ``goondan queues`` shows."""

from collections import Counter
from collections.abc import Iterable

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import call_queue
from goondan_tasks.messages import WireModel
from goondan_tasks.roster import WorkerRecord


class QueueStatus(WireModel):
    """One agent's queue (DESIGN "Commands"). ``backlog`` waits in Redis, ``running`` is in hand."""

    agent: str
    queue: str
    backlog: int
    running: int
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
            pipe.lindex(call_queue(agent), -1)
        answers = pipe.execute()
    rows = [answers[start : start + 3] for start in range(0, len(answers), 3)]
    ages = _ages(redis, keys, [oldest for _, _, oldest in rows])
    return [
        QueueStatus(
            agent=agent,
            queue=call_queue(agent),
            backlog=backlog,
            running=running,
            oldest_seconds=age,
            workers=consumers[agent],
        )
        for agent, (backlog, running, _), age in zip(names, rows, ages, strict=True)
    ]


def _ages(redis: Redis, keys: Keys, messages: list[bytes | None]) -> list[float | None]:
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for message in messages:
            pipe.hget(keys.call(_call_id(message)), "queuedAt")
        (seconds, _), *queued_at = pipe.execute()
    return [None if at is None else max(0.0, round(seconds - int(at) / 1000, 1)) for at in queued_at]


def _call_id(message: bytes | None) -> str:
    try:
        return str(serializer.decode(message)["headers"]["id"]) if message else ""
    except (serializer.NotJsonError, KeyError, TypeError):
        return ""  # not a Celery message; a worker will say so
