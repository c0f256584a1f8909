"""The state of limits, as clients see it."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.connections import redis_time
from broker_config.settings import Settings
from goondan_tasks.client.status import read_limits
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.ledger.ledger import Ledger


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with fakeredis.FakeRedis() as redis:
        yield Ledger(redis, Settings.load())


def test_limits_with_waiting_calls_tell_next_admission_time(ledger: Ledger) -> None:
    redis, keys, now = ledger.redis, ledger.keys, int(redis_time(ledger.redis))
    for name, period, waiting in (("rate:a__b", 60_000, 2), ("call:a__c", 0, 1), ("rate:idle", 1_000, 0)):
        redis.zadd(keys.limits, {name: now})
        redis.hset(keys.limit(name), mapping={"most": 2, "period": period})
        for number in range(waiting):
            redis.zadd(keys.wait_queue(name), {f"id-{number}": now})

    found = {one.limit: one for one in read_limits(ledger)}

    assert {name: (one.waiting, one.most, one.period_seconds) for name, one in found.items()} == {
        "rate:a__b": (2, 2, 60.0),
        "call:a__c": (1, 2, None),
    }
    assert epoch_milliseconds(found["rate:a__b"].free_at) >= now + 60_000
