"""Settling calls that nobody may run any more."""

import time

from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.dispatch import RedisDispatch
from goondan_tasks.ledger.errands import SWEEP_BATCH
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.settlement import Settlement
from tests.unit.goondan_tasks.ledger.calls import a_call, record_of, submission
from tests.waiting import wait_until


def test_one_sweep_settles_all_that_is_late_however_many(redis: Redis) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(2 * SWEEP_BATCH + 1)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    wait_until(lambda: redis.zcount(ledger.keys.due, "-inf", time.time() * 1000) == len(calls))

    assert Settlement(ledger, RedisDispatch(), "").sweep("sweeper") == len(calls)

    assert {record_of(ledger, call).status for call in calls} == {"done"}
