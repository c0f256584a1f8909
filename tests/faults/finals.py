"""How often each call was answered: counted from the notifications of final results."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

from redis import Redis
from redis.client import PubSub

from broker_config.keys import Keys
from goondan_tasks.ledger.record import result_of
from tests.faults.beside import beside

_TICK_SECONDS = 0.2


@contextmanager
def final_results(redis_url: str) -> Iterator[Counter[str]]:
    """Count the final results that are stored during a ``with`` block, by the identity of their call."""
    counts: Counter[str] = Counter()
    with Redis.from_url(redis_url) as redis, closing(redis.pubsub()) as pubsub:
        pubsub.psubscribe(Keys.celery_result("*"))
        pubsub.get_message(timeout=30)
        with beside(lambda is_over: _count(counts, pubsub, is_over), "finals", 60):
            yield counts


def _count(counts: Counter[str], pubsub: PubSub, is_over: threading.Event) -> None:
    message = None
    while message is not None or not is_over.is_set():
        message = pubsub.get_message(timeout=_TICK_SECONDS)
        if message is not None and message["type"] == "pmessage":
            result = result_of(message["data"])
            if result.status != "pending":
                counts[result.meta.id] += 1
