"""How often each call was answered: counted from the notifications of final results."""

import threading
from collections import Counter
from types import TracebackType
from typing import Self

from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.ledger.record import result_of

_TICK_SECONDS = 0.2


class Finals:
    """Counts the final results that were stored during a ``with`` block, by the identity of their call."""

    def __init__(self, redis_url: str) -> None:
        self.counts: Counter[str] = Counter()
        self._redis = Redis.from_url(redis_url)
        self._pubsub = self._redis.pubsub()  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe(Keys.celery_result("*"))
        self._pubsub.get_message(timeout=5)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._count, name="finals")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join(10)
        self._pubsub.close()
        self._redis.close()

    def _count(self) -> None:
        message = None
        while message is not None or not self._closed.is_set():
            message = self._pubsub.get_message(timeout=_TICK_SECONDS)
            if message is not None and message["type"] == "pmessage":
                result = result_of(message["data"])
                if result.status != "pending":
                    self.counts[result.meta.id] += 1
