"""Noticing that an event waits in a mailbox, without asking again and again."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.client import PubSub

from broker_config.keys import Keys


class MailWatch:
    """A subscription to the news of one agent's mailboxes. Methods raise ``RedisError`` as it comes."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    @classmethod
    @contextmanager
    def open(cls, redis: Redis, keys: Keys, agent: str) -> Iterator["MailWatch"]:
        """Subscribe; what comes from now on is not missed."""
        pubsub: PubSub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(keys.mail(agent))
            pubsub.get_message(timeout=1)
            yield cls(pubsub)
        finally:
            pubsub.close()

    def wait(self, seconds: float) -> None:
        """Return when there may be something, at the latest after ``seconds``."""
        self._pubsub.get_message(timeout=max(0.0, seconds))
