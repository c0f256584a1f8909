"""Monitors look and operators intervene by Celery's remote control while a worker runs bursts of calls."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT, Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import AGENT_QUEUE, wait_until_idle
from tests.faults.reckoning import Reckoning
from tests.faults.sizes import short_and_long
from tests.faults.work import submit_work, work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
CROWD = 24
CANCELLED = "E_TOOL_CANCELLED"
#: most are short; those that last are taken over, and what is claimed behind them goes back
WORK = (
    [("once__sync", 0.0)] * 12 + [("again__sync", 0.0)] * 3 + [("once__busy", 0.01), ("again__async", 0.05)]
)


class Control:
    """Broadcasts commands to the only worker of a stack, and returns what it answers."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery
        # a worker may take calls before it listens
        wait_until(lambda: celery.control.ping(timeout=1, limit=1), PATIENCE)

    def __call__(self, command: str, **arguments: Any) -> Any:
        replies = self._celery.control.broadcast(
            command, arguments=arguments, reply=True, timeout=PATIENCE, limit=1
        )
        [[answer]] = [reply.values() for reply in replies or []]
        return answer


@pytest.fixture
def control(stack: LocalStack) -> Iterator[Control]:
    stack.start_worker(concurrency=4)
    with plain_celery(stack.redis_url, set_as_current=False) as celery:
        yield Control(celery)


@contextmanager
def bursts(
    stack: LocalStack, log: HandlerLog, say: Say, allowed: frozenset[str] = frozenset({"ok"})
) -> Iterator[Crowd]:
    """Let producers work during a ``with`` block, and check that each call was answered once."""
    calls = numbered(
        [tool for tool, _ in WORK * 10_000],
        lambda number: work_args(log, number, WORK[number % len(WORK)][1]),
    )
    crowd = Crowd(stack.client, CROWD, PATIENCE)
    with final_results(stack.redis_url) as finals:
        with crowd.at_work(calls) as answers:
            wait_for_more(crowd)
            yield crowd
            wait_for_more(crowd)
        wait_until(lambda: all(finals[answer.id] for answer in answers), PATIENCE)
    reckoning = Reckoning(answers, log.runs(), finals)
    say(reckoning.lines())
    assert reckoning.run_again == reckoning.not_answered_once == reckoning.ok_without_run == []
    assert reckoning.codes.keys() <= allowed
    assert [worker.poll() for worker in stack.workers] == [None]
    wait_until_idle(stack.redis_url)


def wait_for_more(crowd: Crowd) -> None:
    """Return when each producer has had an answer, and some have had more."""
    enough = crowd.answered + 2 * CROWD
    wait_until(lambda: crowd.answered > enough, PATIENCE)


@pytest.mark.parametrize("times", short_and_long(10, 60, minutes=2))
def test_worker_can_be_inspected_during_bursts(
    stack: LocalStack, control: Control, log: HandlerLog, say: Say, times: int
) -> None:
    seen: set[str] = set()
    with bursts(stack, log, say):
        # one that is surely there, whatever the others do meanwhile
        lasting = submit_work(stack.client, log, "again__async", number=10**6, seconds=3)
        wait_until(lambda: log.runs_of(10**6), PATIENCE)
        for _ in range(times):
            active, reserved = control("active"), control("reserved")
            shown = [*active, *reserved]
            assert {one["name"] for one in shown} <= {f"{AGENT}.{tool}" for tool, _ in WORK}
            assert len({one["id"] for one in active}) == len(active)
            assert len({one["id"] for one in reserved}) == len(reserved)
            seen |= {one["id"] for one in shown}
            [state] = control("query_task", ids=[lasting.id]).values() or [["gone"]]
            assert state[0] in ("active", "gone")
            assert control("stats")["pool"]["in-progress"] <= 4
        assert lasting.result(PATIENCE).status == "ok"
    say([f"{len(seen)} calls seen"])
    assert lasting.id in seen


@pytest.mark.long
def test_calls_that_are_revoked_amid_bursts_end_once(
    stack: LocalStack, control: Control, log: HandlerLog, say: Say
) -> None:
    with bursts(stack, log, say, frozenset({"ok", CANCELLED})):
        for _ in range(30):
            waiting = [one["id"] for one in control("reserved")] or queued_ids(stack)
            said = control("revoke", task_id=waiting[:5])["ok"]
            assert said.count("cancelled") + said.count("has ended") == len(waiting[:5])


def queued_ids(stack: LocalStack) -> list[str]:
    """Return the calls that are recorded, the newest first."""
    return [record.id for record in stack.client.calls(AGENT, limit=5)]


@pytest.mark.long
def test_queue_left_and_retaken_amid_bursts_loses_no_call(
    stack: LocalStack, control: Control, log: HandlerLog, say: Say
) -> None:
    with bursts(stack, log, say) as crowd, Redis.from_url(stack.redis_url) as redis:
        for _ in range(5):
            assert control("cancel_consumer", queue=AGENT_QUEUE)["ok"]
            # what it has claimed ends or goes back; then all producers wait
            wait_until(lambda: redis.llen(AGENT_QUEUE) == CROWD, PATIENCE)
            assert redis.zcard(Keys().running(AGENT)) == 0
            begun = len(log.runs())
            assert control("active") == control("reserved") == []
            assert len(log.runs()) == begun
            assert control("add_consumer", queue=AGENT_QUEUE)["ok"]
            wait_for_more(crowd)


@pytest.mark.long
def test_worker_grows_and_shrinks_amid_bursts(
    stack: LocalStack, control: Control, log: HandlerLog, say: Say
) -> None:
    with bursts(stack, log, say):
        for number in range(40):
            command, by = (("pool_grow", 6), ("pool_shrink", 9), ("pool_grow", 3))[number % 3]
            assert "ok" in control(command, n=by)
    runs = [run for runs in log.runs().values() for run in runs]
    changes = sorted([(run.started_at, 1) for run in runs] + [(run.ended_at or 0, -1) for run in runs])
    assert max(itertools.accumulate(change for _, change in changes)) <= 10
