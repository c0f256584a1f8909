"""How often each call was answered: counted from the notifications of final results."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

from redis import Redis
from redis.client import PubSub

from broker_config.keys import Keys
from goondan_tasks.contract.messages import ToolCallResult
from tests.faults.beside import beside

_TICK_SECONDS = 0.2


@contextmanager
def final_results(redis_url: str) -> Iterator[Counter[str]]:
    """Count the final results that are stored during a ``with`` block, by the identity of their call."""
    counts: Counter[str] = Counter()
    with Redis.from_url(redis_url) as redis, closing(redis.pubsub()) as pubsub:
        pubsub.psubscribe(Keys().results("*"))
        pubsub.get_message(timeout=30)
        with beside(lambda is_over: _count(counts, pubsub, is_over), "finals", 60):
            yield counts


def _count(counts: Counter[str], pubsub: PubSub, is_over: threading.Event) -> None:
    message, tellers = None, dict[bytes, bytes]()
    while message is not None or not is_over.is_set():
        message = pubsub.get_message(timeout=_TICK_SECONDS)
        if message is not None and message["type"] == "pmessage":
            for line in message["data"].split(b"\n"):
                call_id, _, wire = line.partition(b" ")
                # each producer that has asked is told; one is enough to count by
                teller = tellers.setdefault(call_id, message["channel"])
                is_final = not wire or ToolCallResult.from_json(wire).status != "pending"
                if is_final and teller == message["channel"]:
                    counts[call_id.decode()] += 1
