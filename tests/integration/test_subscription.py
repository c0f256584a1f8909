"""A subscription, on a real Redis that is silent, freezes and closes connections."""

import signal
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.embedded import EmbeddedRedis
from broker_config.subscription import Subscription

#: how long a subscription reads before it asks whether the server lives
SILENCE_SECONDS = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(params=[2, 3])
def redis(request: pytest.FixtureRequest, server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url, protocol=request.param, socket_timeout=SILENCE_SECONDS) as redis:
        yield redis


@pytest.fixture
def subscription(redis: Redis) -> Iterator[Subscription]:
    subscription = Subscription(redis, "news")
    subscription.subscribe()
    yield subscription
    subscription.close()


def next_message(subscription: Subscription) -> bytes:
    while True:
        message = subscription.read()
        if message is not None:
            return message


def test_messages_come_in_order(subscription: Subscription, redis: Redis) -> None:
    for number in range(100):
        redis.publish("news", number)

    assert [next_message(subscription) for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_silent_server_is_pinged_for_liveness(subscription: Subscription, redis: Redis) -> None:
    assert [subscription.read() for _ in range(4)] == [None] * 4  # silence, its answer, and again

    redis.publish("news", "at last")
    assert next_message(subscription) == b"at last"


def test_frozen_server_is_noticed_and_subscribed_to_again(
    subscription: Subscription, redis: Redis, server: EmbeddedRedis
) -> None:
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RedisConnectionError, match="does not answer"):
            next_message(subscription)
    finally:
        server.process.send_signal(signal.SIGCONT)

    subscription.subscribe()
    redis.publish("news", "awake")
    assert next_message(subscription) == b"awake"


def test_closed_connection_is_noticed_and_subscribed_to_again(
    subscription: Subscription, redis: Redis
) -> None:
    redis.client_kill_filter(_type="pubsub")
    with pytest.raises(RedisConnectionError):
        next_message(subscription)

    subscription.subscribe()
    redis.publish("news", "again")
    assert next_message(subscription) == b"again"


def test_cancel_wakes_reader_of_subscription(redis: Redis) -> None:
    subscription = Subscription(redis, "news")
    subscription.subscribe()

    subscription.cancel()

    assert subscription.read() is None
    assert redis.pubsub_numsub("news") == [(b"news", 0)]
    subscription.close()
