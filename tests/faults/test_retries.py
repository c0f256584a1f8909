"""Calls that wait for their next run while workers are killed: none is lost, doubled, or run early."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT
from tests.faults.fleet import Fleet, kills
from tests.faults.handler_log import HandlerLog, HandlerRun
from tests.faults.idle import keys_without_ttl, wait_until_idle
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS
from tests.faults.work import work_args
from tests.waiting import wait_until

PATIENCE = 120
#: the ``backoffSeconds`` of the tool
PAUSE_SECONDS = 4.0


def submit(stack: LocalStack, log: HandlerLog, count: int, *, fails: int) -> Sequence[PendingCall]:
    return stack.client.submit_many(
        {
            "agentName": AGENT,
            "toolName": "again__flaky",
            "args": {**work_args(log, number, 0.003), "fails": fails},
        }
        for number in range(count)
    )


def starts_too_early(runs: Sequence[HandlerRun], dead: set[int]) -> bool:
    """Return whether a run followed another one before its pause was over, and no death explains that."""
    gaps = [
        then.started_at - run.ended_at for run, then in pairwise(runs) if run.ended_at and run.pid not in dead
    ]
    return any(gap < PAUSE_SECONDS - 0.01 for gap in gaps)


@pytest.mark.faults
def test_waiting_retries_run_once_on_time_though_workers_die(
    stack: LocalStack, log: HandlerLog, say: Say
) -> None:
    fleet = Fleet(stack, 2)
    wait_until(lambda: len(fleet.consuming) == 2, 60)
    pending = submit(stack, log, 24, fails=1)
    wait_until(lambda: len(stack.client.calls(status="scheduled")) == 24, PAUSE_SECONDS)
    for worker in list(fleet.workers):
        fleet.replace(worker)
    assert {one.status() for one in pending} == {"scheduled"}
    results = [one.result(PATIENCE) for one in pending]
    runs = log.runs()

    assert {one.status for one in results} == {"ok"}
    assert {number: len(some) for number, some in runs.items()} == dict.fromkeys(range(24), 2)
    assert {one.meta.attempt for one in results} == {2}
    assert [number for number, some in runs.items() if starts_too_early(some, set())] == []
    latest = max(some[1].started_at - (some[0].ended_at or 0) for some in runs.values())
    say([f"24 retries of killed workers: the last began {latest:.1f} s after the run that had failed"])
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
    assert keys_without_ttl(stack.redis_url) == []


@pytest.mark.faults
@pytest.mark.long
def test_retries_survive_worker_kill_at_any_moment(
    stack: LocalStack, log: HandlerLog, say: Say, chance: random.Random
) -> None:
    fleet, count, batches = Fleet(stack, 3), 200, 3
    wait_until(lambda: len(fleet.consuming) == 3, 60)
    results = []
    with kills(fleet, 1.5, chance):
        for _ in range(batches):
            batch = submit(stack, log, count, fails=2)
            results += [one.result(PATIENCE) for one in batch]
            runs = log.runs()
            log.path.write_text("")
            dead = {death.pid for death in fleet.deaths}
            assert {one.status for one in results} == {"ok"}
            ended = {number: sum(run.ended_at is not None for run in some) for number, some in runs.items()}
            assert sorted(ended) == list(range(count))
            assert min(ended.values()) == 3
            again = [number for number, some in runs.items() if len(some) > 3]
            assert [one for one in again if not dead & {run.pid for run in runs[one]}] == []
            assert [number for number, some in runs.items() if starts_too_early(some, dead)] == []
    say([f"{count * batches} calls that failed twice, {len(fleet.deaths)} deaths: each was ok at last"])
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
