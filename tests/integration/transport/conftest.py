"""A private Redis for the transport's tests, and workers on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from broker_config.embedded import EmbeddedRedis
from tests.integration.transport.kombu_worker import Worker


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def redis(url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as redis:
        redis.flushdb()
        yield redis


@pytest.fixture
def worker(url: str, redis: Redis) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:
        yield lambda prefetch=8, **options: stack.enter_context(
            Worker(options.pop("url", url), prefetch, **options)
        )
