"""Workers that stop amid a backlog give back what they have claimed: none is lost, doubled or overtaken."""

import itertools
import random
import signal
import threading

import pytest
from redis import Redis

from broker_config import serializer
from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT, Answer, NumberedCall
from tests.faults.finals import final_results
from tests.faults.fleet import Worker
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import AGENT_QUEUE, wait_until_idle
from tests.faults.reckoning import Reckoning
from tests.faults.work import work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
CALLS = 1_000
#: short tools, and some that last: in a thread, and on the event loop
WORK = [("once__sync", 0.0)] * 20 + [("again__sync", 0.0)] * 4 + [("once__busy", 0.03), ("again__async", 0.1)]

Calls = dict[str, tuple[NumberedCall, PendingCall]]


def launch(stack: LocalStack, concurrency: int) -> Worker:
    """Start a worker without waiting until it consumes."""
    return stack._launch(stack._agents, concurrency)


def submit_backlog(stack: LocalStack, log: HandlerLog, count: int = CALLS) -> Calls:
    """Submit calls in the order of their numbers; return them by identity."""
    calls = [
        NumberedCall(number, tool, work_args(log, number, seconds))
        for number, (tool, seconds) in zip(range(count), itertools.cycle(WORK), strict=False)
    ]
    wire = [{"agentName": AGENT, "toolName": call.tool, "args": call.args} for call in calls]
    submitted = stack.client.submit_many(wire)
    return {pending.id: (call, pending) for call, pending in zip(calls, submitted, strict=True)}


def stop_amid_work(worker: Worker, log: HandlerLog, chance: random.Random) -> None:
    """Ask a worker to stop after some of its calls, and wait until it has."""
    enough = len(log.runs()) + 60
    wait_until(lambda: len(log.runs()) > enough, PATIENCE)
    threading.Event().wait(chance.uniform(0, 0.05))  # at any moment of its work
    worker.send_signal(signal.SIGTERM)
    worker.wait(PATIENCE)


def queued(redis: Redis, calls: Calls) -> list[int]:
    """Return the numbers of the calls in the queue, the one that is taken next in front."""
    messages = redis.lrange(AGENT_QUEUE, 0, -1)
    return [calls[serializer.decode(message)["headers"]["id"]][0].number for message in messages][::-1]


@pytest.mark.parametrize(
    ("concurrency", "rounds"),
    [pytest.param(2, 1, id="short"), *(pytest.param(size, 4, marks=pytest.mark.long) for size in (1, 8))],
)
def test_calls_that_are_given_back_keep_their_order(
    stack: LocalStack,
    log: HandlerLog,
    chance: random.Random,
    say: Say,
    concurrency: int,
    rounds: int,
) -> None:
    with final_results(stack.redis_url) as finals, Redis.from_url(stack.redis_url) as redis:
        calls = submit_backlog(stack, log)
        for _ in range(rounds):
            stop_amid_work(launch(stack, concurrency), log, chance)
            left = queued(redis, calls)
            begun = log.runs().keys()
            assert left == sorted(left)
            assert begun.isdisjoint(left)
            assert begun | set(left) == set(range(CALLS))
            assert redis.zcard("goondan:running:tester") == 0
        launch(stack, concurrency)
        reckoning = all_answered_once(calls, log, finals)
    say([*reckoning.lines(), f"{rounds} workers stopped, {len(left)} calls were left at last"])
    wait_until_idle(stack.redis_url)


@pytest.mark.long
@pytest.mark.parametrize(("concurrency", "count"), [(1, CALLS), (8, 2 * CALLS)])
def test_another_worker_takes_over_returned_calls(
    stack: LocalStack,
    log: HandlerLog,
    chance: random.Random,
    say: Say,
    concurrency: int,
    count: int,
) -> None:
    with final_results(stack.redis_url) as finals:
        workers = [launch(stack, concurrency) for _ in range(2)]
        wait_until(lambda: len(stack.client.workers()) == 2, PATIENCE)
        calls = submit_backlog(stack, log, count)
        for _ in range(4):
            stop_amid_work(workers.pop(0), log, chance)
            workers.append(launch(stack, concurrency))
        reckoning = all_answered_once(calls, log, finals)
    say(reckoning.lines())
    assert [worker.poll() for worker in workers] == [None, None]
    wait_until_idle(stack.redis_url)


def all_answered_once(calls: Calls, log: HandlerLog, finals: dict[str, int]) -> Reckoning:
    """Wait for all results; check that each call ran once and was answered once."""
    answers = [Answer(call, pending.id, pending.result(PATIENCE)) for call, pending in calls.values()]
    wait_until(lambda: len(finals) == len(calls))
    reckoning = Reckoning(answers, log.runs(), finals)
    assert reckoning.codes == {"ok": len(calls)}
    assert reckoning.run_again == reckoning.not_answered_once == []
    # what was given back and not left to its lease is a first attempt
    assert {answer.result.meta.attempt for answer in answers} == {1}
    return reckoning
