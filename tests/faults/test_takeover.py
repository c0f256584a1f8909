"""Handlers at the edge of what the watch calls short: the lead changes all the time, and one thread reads."""

import itertools

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT, Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.reckoning import Reckoning
from tests.faults.sizes import short_and_long
from tests.faults.work import submit_work, work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
#: around what counts as short
SECONDS = (0.004, 0.005, 0.006, 0.008)


@pytest.mark.parametrize("calls", short_and_long(300, 2_000, minutes=2))
def test_one_thread_at_a_time_uses_leads_connection(
    stack: LocalStack, log: HandlerLog, say: Say, calls: int
) -> None:
    worker, client = stack.start_worker(), stack.client
    assert client.call(AGENT, "reader__look", {}, timeout=PATIENCE).status == "ok"
    # it takes the interpreter from the others, the watch too, for as long as it may; then they go on alone
    busy = submit_work(client, log, "once__busy", number=calls, seconds=calls / 400)
    wait_until(lambda: log.runs_of(calls), PATIENCE)
    work = numbered(
        itertools.cycle(["again__sync", "once__busy", "once__sync"]),
        lambda number: work_args(log, number, SECONDS[number // 3 % len(SECONDS)]),
    )
    with final_results(stack.redis_url) as finals:
        answers = Crowd(client, 24, PATIENCE).run(itertools.islice(work, calls))
        assert busy.result(PATIENCE).status == "ok"
        wait_until(lambda: all(finals[answer.id] for answer in answers), PATIENCE)
    seen = client.call(AGENT, "reader__tell", {}, timeout=PATIENCE).output
    reckoning = Reckoning(answers, log.runs(), finals)
    say([*reckoning.lines(), f"seen {seen}"])
    assert seen["overlaps"] == 0
    assert seen["takeovers"] > calls / 50
    assert seen["threads"] > 1
    assert reckoning.codes == {"ok": calls}
    assert reckoning.run_again == reckoning.not_answered_once == []
    assert worker.poll() is None
    wait_until_idle(stack.redis_url)
