"""A private Redis for the transport's tests."""

from collections.abc import Iterator

import pytest
from redis import Redis

from broker_config.embedded import EmbeddedRedis


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def redis(url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as redis:
        redis.flushdb()
        yield redis
