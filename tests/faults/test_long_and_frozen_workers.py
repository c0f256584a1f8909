"""Handlers that outlive their lease, and workers that sleep through it."""

import signal
import threading
import time
from typing import cast

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.testing import LocalStack
from tests.faults.beside import beside
from tests.faults.conftest import Say
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.reckoning import UNKNOWN
from tests.faults.sizes import LEASE_SECONDS, LEASES, MARGIN_SECONDS, short_and_long
from tests.faults.work import submit_work
from tests.waiting import wait_until

PATIENCE = 60


@pytest.mark.faults
@pytest.mark.long
def test_handler_that_runs_for_many_leases_runs_once(stack: LocalStack, log: HandlerLog, say: Say) -> None:
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
@pytest.mark.parametrize("leases", short_and_long(1.2, 8, minutes=3))
def test_busy_workers_renew_their_leases_in_time(
    stack: LocalStack, log: HandlerLog, say: Say, leases: float
) -> None:
    for _ in range(2):
        stack.start_worker()
    client, seconds = stack.client, leases * LEASE_SECONDS
    long = [submit_work(client, log, "once__busy", number=number, seconds=seconds) for number in range(10)]
    wait_until(lambda: len(log.runs()) == len(long), PATIENCE)
    left: list[float] = []

    def watch(is_over: threading.Event) -> None:
        with Redis.from_url(stack.redis_url) as redis:
            while not is_over.wait(0.02):
                scores = cast("list[float | None]", redis.zmscore(Keys().due, [call.id for call in long]))
                left.extend(score / 1000 - time.time() for score in scores if score is not None)

    with beside(watch, "leases", PATIENCE):
        while any(call.status() == "running" for call in long):
            calls = [{"agentName": "tester", "toolName": "mixed__strict", "args": {"number": 1}}] * 50
            assert {call.result(PATIENCE).status for call in client.submit_many(calls)} == {"ok"}
    say([f"at least {min(left):.2f} s of {LEASE_SECONDS} s were left of each lease"])
    assert [call.result(PATIENCE).meta.attempt for call in long] == [1] * len(long)
    assert min(left) > 0


@pytest.mark.faults
@pytest.mark.long
def test_long_handler_keeps_lease_while_worker_drains(stack: LocalStack, log: HandlerLog) -> None:
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
def test_worker_frozen_past_its_lease_changes_no_result(stack: LocalStack, log: HandlerLog) -> None:
    sleeper = stack.start_worker()
    seconds = 2 * LEASE_SECONDS
    again = submit_work(stack.client, log, "again__async", number=1, seconds=seconds)
    once = submit_work(stack.client, log, "once__sync", number=2, seconds=seconds)
    wait_until(lambda: len(log.runs()) == 2)
    with final_results(stack.redis_url) as finals:
        sleeper.send_signal(signal.SIGSTOP)
        owner = stack.start_worker()
        unknown = once.result(PATIENCE)
        wait_until(lambda: len(log.runs_of(1)) == 2, LEASE_SECONDS + MARGIN_SECONDS)
        sleeper.send_signal(signal.SIGCONT)
        wait_until(lambda: stack.log(sleeper).count("call.superseded") == 2, PATIENCE)
        assert again.status() == "running"
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
