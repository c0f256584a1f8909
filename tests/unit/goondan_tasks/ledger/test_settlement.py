"""Settling calls that nobody may run any more."""

import time

import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.dispatch import RedisDispatch
from goondan_tasks.ledger.errands import SWEEP_BATCH
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.ledger.submission import Submission
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.new_call import identity_of
from tests.unit.goondan_tasks.ledger.calls import a_call, record_of, submission
from tests.waiting import wait_until


def test_one_sweep_settles_all_that_is_late_however_many(redis: Redis) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(2 * SWEEP_BATCH + 1)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    wait_until(lambda: redis.zcount(ledger.keys.due, "-inf", time.time() * 1000) == len(calls))

    assert Settlement(ledger, RedisDispatch(), "").sweep("sweeper") == len(calls)

    assert {record_of(ledger, call).status for call in calls} == {"done"}


class Stumbling(Settlement):
    """Has a fault that one of the calls meets."""

    stumbles_over = ""

    def answer(self, claim: Claim, result: ToolCallResult) -> Submission | None:
        if claim.run.id == self.stumbles_over:
            raise LookupError("a fault of ours")
        return super().answer(claim, result)


def test_a_call_that_cannot_be_settled_does_not_stop_the_sweep(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(3)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    wait_until(lambda: redis.zcount(ledger.keys.due, "-inf", time.time() * 1000) == len(calls))
    settlement = Stumbling(ledger, RedisDispatch(), "")
    settlement.stumbles_over = identity_of(calls[0])

    settlement.sweep("sweeper")

    assert [record_of(ledger, call).status for call in calls] == ["running", "done", "done"]
    assert f"call {settlement.stumbles_over} cannot be settled" in caplog.text
