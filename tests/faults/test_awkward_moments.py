"""Workers that end at the worst moment, and workers that are replaced under load."""

import itertools
import signal

import pytest
from redis import Redis

from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT, Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.fleet import Fleet, Worker
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.reckoning import UNKNOWN, Reckoning
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, ROLLING
from tests.faults.work import TOOLS, submit_work, work_args
from tests.waiting import wait_until

PATIENCE = 60


def let_a_worker_die(stack: LocalStack, log: HandlerLog, moment: str, tool: str) -> PendingCall:
    """Let a worker that has taken call 1 die at that moment of it; another one takes its place."""
    worker = stack.start_worker()
    assert stack.client.call(AGENT, "deadly__arm", {"moment": moment}, timeout=PATIENCE).status == "ok"
    call = submit_work(stack.client, log, tool, number=1)
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    stack.start_worker()
    return call


def require_one_run(stack: LocalStack, log: HandlerLog, worker: Worker, tool: str) -> None:
    """Let a worker die in a call, which another one does not run again."""
    call = submit_work(stack.client, log, tool, number=1, seconds=PATIENCE)
    wait_until(lambda: log.runs_of(1), PATIENCE)
    worker.kill()
    worker.wait(PATIENCE)
    stack.start_worker()
    result = call.result(LEASE_SECONDS + MARGIN_SECONDS)
    assert result.error is not None
    assert (result.error.code, len(log.runs_of(1))) == (UNKNOWN, 1)


@pytest.mark.faults
@pytest.mark.parametrize("tool", ["once__sync", pytest.param("once__async", marks=pytest.mark.long)])
def test_death_in_first_call_on_new_redis_reruns_nothing(
    stack: LocalStack, log: HandlerLog, tool: str
) -> None:
    worker = stack.start_worker()
    require_one_run(stack, log, worker, tool)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("tool", ["once__sync", "once__async"])
def test_death_after_silent_connection_cut_reruns_nothing(
    stack: LocalStack, log: HandlerLog, tool: str
) -> None:
    worker = stack.start_worker()
    for _ in range(3):  # a tool that is known to last has a thread of its own, and nobody looks after it
        assert stack.client.call(AGENT, tool, work_args(log, 0, 0.05), timeout=PATIENCE).status == "ok"
    wait_until_idle(stack.redis_url)
    with Redis.from_url(stack.redis_url) as redis:
        for connection in redis.client_list():
            if connection["name"] in ("goondan-worker", "goondan-lead"):  # those that carry marks and results
                redis.client_kill_filter(_id=connection["id"])
    require_one_run(stack, log, worker, tool)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize(("tool", "runs"), [("once__sync", 1), ("again__async", 2)])
def test_death_between_handler_end_and_result_is_settled_honestly(
    stack: LocalStack, log: HandlerLog, tool: str, runs: int
) -> None:
    with final_results(stack.redis_url) as finals:
        call = let_a_worker_die(stack, log, "between end and result", tool)
        result = call.result(LEASE_SECONDS + MARGIN_SECONDS)
    assert len(log.runs_of(1)) == runs
    assert (None if result.error is None else result.error.code) == (UNKNOWN if runs == 1 else None)
    assert finals[call.id] == 1


@pytest.mark.faults
@pytest.mark.parametrize("tool", ["once__sync", pytest.param("again__async", marks=pytest.mark.long)])
def test_death_right_after_stored_result_reruns_nothing(
    stack: LocalStack, log: HandlerLog, tool: str
) -> None:
    with final_results(stack.redis_url) as finals:
        call = let_a_worker_die(stack, log, "after the result", tool)
        result = call.result(PATIENCE)
        assert leftovers(stack.redis_url) == {}
        again = stack.client.pending(call.id).result(PATIENCE)
    assert (result.status, again, len(log.runs_of(1))) == ("ok", result, 1)
    assert finals[call.id] == 1


@pytest.mark.faults
@pytest.mark.long
def test_worker_killed_while_it_drains_loses_nothing(stack: LocalStack, log: HandlerLog) -> None:
    draining = stack.start_worker(concurrency=2)
    tools = ("once__sync", "again__async", "once__async", "again__sync")
    calls = [
        submit_work(stack.client, log, tool, number=number, seconds=2.0) for number, tool in enumerate(tools)
    ]
    wait_until(lambda: len(log.runs()) == 2, PATIENCE)
    draining.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker.draining" in stack.log(draining))
    draining.kill()
    draining.wait(PATIENCE)
    stack.start_worker()
    results = [call.result(PATIENCE) for call in calls]
    codes = [None if result.error is None else result.error.code for result in results]
    assert codes == [UNKNOWN, None, None, None]
    assert [len(log.runs_of(number)) for number in range(4)] == [1, 2, 1, 1]
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)


@pytest.mark.faults
@pytest.mark.long
def test_rolling_restart_under_load_shows_no_error(stack: LocalStack, log: HandlerLog, say: Say) -> None:
    fleet = Fleet(stack, ROLLING.workers)
    wait_until(lambda: len(fleet.consuming) == ROLLING.workers, PATIENCE)
    calls = numbered(itertools.cycle(TOOLS), lambda number: work_args(log, number, (0.003, 0.2)[number % 2]))
    crowd = Crowd(stack.client, 32, PATIENCE)
    with final_results(stack.redis_url) as finals, crowd.at_work(calls) as answers:
        for _ in range(ROLLING.rounds * ROLLING.workers):
            oldest = fleet.oldest
            successor = fleet.replace(oldest, signal.SIGTERM)
            wait_until(lambda: successor in fleet.consuming, PATIENCE)  # noqa: B023 - at once
            assert oldest.wait(PATIENCE) == 0
    reckoning = Reckoning(answers, log.runs(), finals)
    say(reckoning.lines())
    assert reckoning.codes.keys() == {"ok"}
    assert reckoning.run_again == reckoning.not_answered_once == []
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
