"""Workers that are killed while they work."""

import random

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import Crowd, numbered
from tests.faults.dead_hands import DeadHands
from tests.faults.finals import Finals
from tests.faults.fleet import Fleet, Killer
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import keys_without_ttl, wait_until_idle
from tests.faults.reckoning import POISONED, UNKNOWN, Reckoning, claim_times
from tests.faults.sizes import KILLS, LEASE_SECONDS, MARGIN_SECONDS, Size
from tests.waiting import wait_until

TOOLS = ("once__sync", "again__sync", "once__async", "again__async")


@pytest.mark.faults
@pytest.mark.parametrize("size", KILLS)
def test_calls_survive_the_kill_of_one_worker_after_another(
    stack: LocalStack, log: HandlerLog, chance: random.Random, say: Say, size: Size
) -> None:
    fleet = Fleet(stack, 3)
    wait_until(lambda: len(fleet.consuming) == 3, 60)
    calls = numbered(
        (TOOLS[number % 4] for number in range(size.calls)),
        lambda number: {"log": str(log.path), "seconds": chance.choice((0.003, 0.03, 0.2, size.longest))},
    )
    with (
        Finals(stack.redis_url) as finals,
        DeadHands(stack.client, fleet) as dead_hands,
        Killer(fleet, size.kill_every, chance),
    ):
        answers = Crowd(stack.client, size.crowd, patience=120).run(calls)
    reckoning = Reckoning(
        answers,
        log.runs(),
        finals.counts,
        fleet.deaths,
        claimed_at=claim_times(stack.client, answers),
        dead_hands=dead_hands.seconds,
    )
    say(reckoning.lines())
    assert len(answers) == size.calls
    assert reckoning.not_answered_once == []
    assert reckoning.run_twice == []
    assert reckoning.unknown_without_start == []
    assert reckoning.ok_without_run == reckoning.wrong_owner == []
    assert reckoning.codes.keys() <= {"ok", UNKNOWN, POISONED}
    assert reckoning.interrupted, "no kill has met a running call"
    assert dead_hands.longest <= LEASE_SECONDS + MARGIN_SECONDS
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
    assert keys_without_ttl(stack.redis_url) == []
