"""A crowd works while its workers are killed; what must hold whatever pool and broker do."""

import itertools
import random

from goondan_tasks.testing import LocalStack
from tests.faults.crowd import Crowd
from tests.faults.dead_hands import dead_hands
from tests.faults.finals import final_results
from tests.faults.fleet import Fleet, kills
from tests.faults.handler_log import HandlerLog
from tests.faults.reckoning import Reckoning, last_claims
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, Size
from tests.faults.work import mixed_work
from tests.waiting import wait_until


def survive(stack: LocalStack, fleet: Fleet, log: HandlerLog, size: Size) -> Reckoning:
    """Let a crowd work while workers are killed, and check that nothing is lost, doubled or late."""
    chance = random.Random(1)
    wait_until(lambda: len(fleet.consuming) == 3, 60)
    calls = itertools.islice(mixed_work(log, chance, size.longest), size.calls)
    with (
        final_results(stack.redis_url) as finals,
        dead_hands(stack.client, fleet) as watch,
        kills(fleet, size.kill_every, chance),
    ):
        answers = Crowd(stack.client, size.crowd, patience=120).run(calls)
    reckoning = Reckoning(
        answers,
        log.runs(),
        finals,
        fleet.deaths,
        claims=last_claims(stack.client, answers, watch.pids),
        dead_hands=watch.seconds,
    )
    assert len(answers) == size.calls
    assert reckoning.not_answered_once == []
    assert reckoning.run_twice == []
    assert reckoning.unknown_without_start == []
    assert reckoning.ok_without_run == []
    assert reckoning.interrupted, "no kill has met a running call"
    assert max(watch.seconds.values(), default=0.0) <= LEASE_SECONDS + MARGIN_SECONDS
    return reckoning
