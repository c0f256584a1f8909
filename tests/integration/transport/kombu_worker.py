"""A consumer of the workers' transport, driven by hand."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from kombu import Connection, Queue
from redis import Redis

from broker_config.queues import wake_up_key
from broker_config.task_message import TaskMessage
from broker_config.transport import Transport
from tests.waiting import wait_until

QUEUE = "agent.coder"
#: of workers that are driven in order
LEASE_SECONDS = 60


class Worker:
    """A consumer as a worker has one, driven by hand."""

    def __init__(
        self,
        url: str,
        prefetch: int,
        *,
        queues: tuple[str, ...] = (QUEUE,),
        lease: int = LEASE_SECONDS,
        connection: Connection | None = None,
    ) -> None:
        self.connection = connection or connection_to(url, lease)
        self.channel = cast(Any, self.connection.channel())
        self.channel.basic_qos(0, prefetch, False)
        self.messages: list[Any] = []
        self.consumer = self.connection.Consumer(
            [Queue(name) for name in queues], channel=self.channel, on_message=self.messages.append
        )
        self.consumer.consume()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.release()

    @property
    def ids(self) -> list[str]:
        return [message.headers["id"] for message in self.messages]

    def wait_for_a_moment(self, seconds: float = 0.02) -> None:
        """Let the consumer sleep and work for a short time."""
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=seconds)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Let the consumer sleep and work until ``condition()`` holds."""

        def turn() -> object:
            if not condition():
                self.wait_for_a_moment(0.1)
            return condition()

        wait_until(turn)


def connection_to(url: str, lease: int = LEASE_SECONDS) -> Connection:
    """Return a connection as a worker has one, not made yet."""
    options = {"visibility_timeout": lease, "priority_steps": [0]}
    return Connection(url, transport=Transport, transport_options=options)


def push(redis: Redis, *call_ids: str, queue: str = QUEUE, ring: bool = True) -> None:
    for call_id in call_ids:
        message = TaskMessage("goondan.tool_call", call_id, queue, b'{"call":{}}')
        redis.lpush(queue, message.to_redis())
    if ring:
        redis.lpush(wake_up_key(queue), 1)


def waiting(redis: Redis) -> list[str]:
    """Return the ids of the messages in the queue, the one that is taken next in front."""
    messages = cast("list[bytes]", redis.lrange(QUEUE, 0, -1))
    return [json.loads(message)["headers"]["id"] for message in reversed(messages)]
