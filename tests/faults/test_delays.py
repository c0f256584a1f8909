"""Scheduled calls while workers are killed: none early, lost or doubled, and each queued at its time."""

import random
from dataclasses import dataclass

import pytest
from redis import Redis

from broker_config.connections import redis_time
from goondan_tasks.contract.messages import ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT
from tests.faults.fleet import Fleet, kills
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import keys_without_ttl, wait_until_idle
from tests.faults.reckoning import UNKNOWN
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, short_and_long
from tests.faults.work import work_args
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many calls, spread over how many seconds, and how often a worker is killed meanwhile."""

    calls: int
    seconds: float
    kill_every: float


SCHEDULES = short_and_long(Schedule(200, 5, 1.5), Schedule(10_000, 120, 2.0), minutes=8)
PATIENCE = 120


@pytest.mark.faults
@pytest.mark.parametrize("size", SCHEDULES)
def test_scheduled_calls_run_once_on_time_despite_killed_workers(
    stack: LocalStack, log: HandlerLog, say: Say, size: Schedule
) -> None:
    chance = random.Random(1)
    fleet = Fleet(stack, 3)
    wait_until(lambda: len(fleet.consuming) == 3, 60)
    with Redis.from_url(stack.redis_url) as redis:
        begin = round(redis_time(redis)) + 3_000
    times = [begin + chance.randrange(round(size.seconds * 1000)) for _ in range(size.calls)]
    with kills(fleet, size.kill_every, chance):
        pending = stack.client.submit_many(
            {
                "agentName": AGENT,
                "toolName": "again__async",
                "args": work_args(log, number, 0.003),
                "notBefore": iso_time(time),
            }
            for number, time in enumerate(times)
        )
        results = [one.result(size.seconds + PATIENCE) for one in pending]
    runs = log.runs()

    assert {one.status if one.error is None else one.error.code for one in results} <= {"ok", UNKNOWN}
    assert runs.keys() == set(range(size.calls))
    assert [number for number, time in enumerate(times) if runs[number][0].started_at * 1000 < time - 1] == []
    # a second run follows the death of the first one's worker
    dead = {death.pid for death in fleet.deaths}
    again = [number for number, some in runs.items() if any(run.pid not in dead for run in some[:-1])]
    assert again == []
    late = sorted(_late(one, time) for one, time in zip(results, times, strict=True))
    say(
        [
            f"{size.calls} scheduled calls over {size.seconds:g} s, {len(dead)} kills: queued "
            f"{late[len(late) // 2]:.0f} ms late (median), {late[len(late) * 99 // 100]:.0f} ms (99 %), "
            f"{late[-1]:.0f} ms (latest); {sum(len(some) > 1 for some in runs.values())} ran again"
        ]
    )
    assert late[0] >= 0
    assert late[-1] < MARGIN_SECONDS * 1000
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
    assert keys_without_ttl(stack.redis_url) == []


def _late(result: ToolCallResult, time: int) -> int:
    """Return how long after its time a call was queued, in ms."""
    return epoch_milliseconds(result.meta.queued_at or "") - time
