"""The connection of a worker that is Celery's, on a real Redis."""

import contextlib
from typing import Any, cast

import pytest
from kombu import Connection, Queue
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis
from redis import Redis

from broker_config import transport
from broker_config.broker_connection import QueueNames
from tests.faults.proxy import Proxy
from tests.integration.transport.queues import QUEUE, push, waiting


def connection_to(url: str) -> Connection:
    """Return a connection as a worker has one, not made yet."""
    return Connection(url, transport=transport.Transport, transport_options={"priority_steps": [0]})


@pytest.mark.parametrize("admitted", range(4))
def test_connection_that_fails_half_way_is_made_again(url: str, redis: Redis, admitted: int) -> None:
    with Proxy(url) as proxy:
        proxy.admit(admitted)
        with connection_to(proxy.url) as connection:
            with contextlib.suppress(OperationalError):
                connection.ensure_connection(max_retries=1, interval_start=0)
            proxy.admit()
            connection.ensure_connection(max_retries=1, interval_start=0)
            connection.Producer().publish([], routing_key=QUEUE)
    assert redis.llen(QUEUE) == 1


def test_redis_refusing_writes_counts_as_not_ready(url: str, redis: Redis) -> None:
    with connection_to(url) as connection:
        redis.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(OperationalError, match="NOREPLICAS"):
                connection.ensure_connection(max_retries=1, interval_start=0)
        finally:
            redis.config_set("min-replicas-to-write", 0)
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_celery_knows_queues_and_takes_no_messages(url: str, redis: Redis) -> None:
    push(redis, "one")
    with connection_to(url) as connection:
        consumer = QueueNames(connection, [Queue(QUEUE)])
        consumer.consume()
        consumer.add_queue(Queue("agent.coder.events"))
        assert [queue.name for queue in consumer.queues] == [QUEUE, "agent.coder.events"]
        consumer.cancel_by_queue("agent.coder.events")
        assert [queue.name for queue in consumer.queues] == [QUEUE]
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        consumer.cancel()
    assert waiting(redis) == ["one"]


def test_kombu_has_attributes_that_transport_needs() -> None:
    needed = {
        kombu_redis.Channel: "conn_or_acquire",
        kombu_redis.Transport: "establish_connection",
        kombu_redis.MultiChannelPoller: "on_poll_init",
    }
    assert [name for owner, name in needed.items() if not hasattr(owner, name)] == []
    with Connection("redis://") as connection:
        assert cast(Any, connection.transport)._avail_channels == []
