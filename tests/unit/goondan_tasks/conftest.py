"""A ledger on a Redis in memory."""

from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.ledger.ledger import Ledger


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=60))
    ledger.sweep("sweeper").run(ledger.redis)  # as every worker does now and then
    return ledger


@pytest.fixture
def hasty(redis: Redis) -> Ledger:
    """The same ledger as one for which leases and deadlines are over almost at once."""
    return Ledger(redis, Settings(lease_seconds=0.02, queue_timeout_seconds=0.02))
