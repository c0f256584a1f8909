"""Handlers that outlive their lease, and workers that sleep through it."""

import signal

import pytest
from redis import Redis

from broker_config.in_flight import IN_FLIGHT
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.reckoning import UNKNOWN
from tests.faults.sizes import LEASE_SECONDS, LEASES, MARGIN_SECONDS
from tests.faults.work import submit_work
from tests.waiting import wait_until

PATIENCE = 60


@pytest.mark.faults
@pytest.mark.long
def test_a_handler_that_runs_for_many_leases_runs_once(stack: LocalStack, log: HandlerLog, say: Say) -> None:
    for _ in range(2):
        stack.start_worker()
    tools = ("once__sync", "once__async", "again__sync", "again__async")
    seconds = LEASES * LEASE_SECONDS
    with final_results(stack.redis_url) as finals:
        calls = [
            submit_work(stack.client, log, tool, number=number, seconds=seconds)
            for number, tool in enumerate(tools)
        ]
        results = [call.result(seconds + PATIENCE) for call in calls]
    runs = log.runs()
    say([f"{len(results)} handlers of {LEASES} leases, runs {[len(runs[number]) for number in range(4)]}"])
    assert [(result.status, result.meta.attempt) for result in results] == [("ok", 1)] * 4
    assert [len(runs[number]) for number in range(4)] == [1] * 4
    assert sorted(finals.values()) == [1] * 4


@pytest.mark.faults
@pytest.mark.long
def test_a_long_handler_keeps_its_lease_while_its_worker_drains(stack: LocalStack, log: HandlerLog) -> None:
    draining = stack.start_worker()
    seconds = 2.5 * LEASE_SECONDS
    calls = [
        submit_work(stack.client, log, tool, number=number, seconds=seconds)
        for number, tool in enumerate(("once__sync", "again__async"))
    ]
    wait_until(lambda: len(log.runs()) == 2, PATIENCE)
    stack.start_worker()
    draining.send_signal(signal.SIGTERM)
    assert [call.result(seconds + PATIENCE).meta.attempt for call in calls] == [1, 1]
    assert draining.wait(PATIENCE) == 0
    assert [len(log.runs_of(number)) for number in range(2)] == [1, 1]
    assert leftovers(stack.redis_url) == {}


@pytest.mark.faults
def test_a_worker_that_slept_past_its_lease_disturbs_nobody(stack: LocalStack, log: HandlerLog) -> None:
    sleeper = stack.start_worker()
    seconds = 2 * LEASE_SECONDS
    again = submit_work(stack.client, log, "again__async", number=1, seconds=seconds)
    once = submit_work(stack.client, log, "once__sync", number=2, seconds=seconds)
    wait_until(lambda: len(log.runs()) == 2)
    with final_results(stack.redis_url) as finals, Redis.from_url(stack.redis_url) as redis:
        sleeper.send_signal(signal.SIGSTOP)
        owner = stack.start_worker()
        unknown = once.result(PATIENCE)
        wait_until(lambda: len(log.runs_of(1)) == 2, LEASE_SECONDS + MARGIN_SECONDS)
        sleeper.send_signal(signal.SIGCONT)
        wait_until(lambda: stack.log(sleeper).count("call.superseded") == 2, PATIENCE)
        assert again.status() == "running"
        assert redis.hlen(IN_FLIGHT) == 1, "the late acknowledgement took the new owner's reservation"
        result = again.result(PATIENCE)
    assert unknown.error is not None
    assert unknown.error.code == UNKNOWN
    assert (result.output["pid"], result.meta.attempt) == (owner.pid, 2)
    assert stack.client.pending(once.id).result(PATIENCE) == unknown
    assert stack.client.pending(again.id).result(PATIENCE) == result
    assert finals == {once.id: 1, again.id: 1}
    assert sleeper.poll() is None
    assert len(log.runs_of(2)) == 1
    wait_until_idle(stack.redis_url)
