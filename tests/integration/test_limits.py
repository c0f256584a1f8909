"""Limits across real workers: how many run, in which order, and what waiting costs the others."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.client.status import QueueStatus
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.ledger.limiter import RESERVED
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.crew import Crew
from tests.integration.diary import BUNDLE, Diary
from tests.waiting import wait_until

PATIENCE = 60
SHORT_LEASES = {"GOONDAN_LEASE_SECONDS": "2"}
#: how long after its lease a dead worker's permit may be freed; three workers' starts and a sweep take less
MARGIN_SECONDS = 20


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.fixture(scope="module")
def shop() -> Iterator[LocalStack]:
    """Three workers for all tests that leave them alone."""
    with LocalStack(BUNDLE, workers=3, concurrency=8) as stack:
        yield stack


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """A stack with short leases, for tests that stop and kill its workers."""
    with LocalStack(BUNDLE, workers=0, environment=SHORT_LEASES) as stack:
        yield Crew(stack)


@pytest.fixture
def stack(crew: Crew) -> LocalStack:
    return crew.stack


def status_of(client: Client, agent: str = "clerk") -> QueueStatus:
    return next(row for row in client.queues() if row.agent == agent)


def all_ok(calls: list[PendingCall]) -> bool:
    return {call.result(PATIENCE).status for call in calls} == {"ok"}


def test_damaged_call_is_dead_letter_and_costs_no_place(diary: Diary) -> None:
    with LocalStack(BUNDLE, workers=0) as stack:
        client = stack.client
        damaged = client.submit_many([diary.call("desk__solo", "damaged")])[0]
        key = Keys("goondan").call(damaged.id)
        client._redis.delete(key)
        client._redis.set(key, "of another program")
        stack.start_worker(["clerk"], concurrency=1)
        client.submit_many([diary.call("desk__solo", "sound")])
        wait_until(lambda: diary.started() == ["sound"], PATIENCE)
        wait_until(lambda: client.dead_letters("clerk"), PATIENCE)
        [letter] = client.dead_letters("clerk")
    assert f"The record of call {damaged.id}" in letter.call.args["reason"]


def test_three_workers_together_stay_within_limit(shop: LocalStack, diary: Diary) -> None:
    calls = [
        diary.call(tool, f"{tool}-{number}", agent=agent, seconds=0.02)
        for number in range(15)
        for tool in ("desk__work", "desk__rest")
        for agent in ("clerk", "porter")
    ]
    assert all_ok(shop.client.submit_many(calls))
    assert diary.most_at_once() == 2
    assert len(diary.started()) == 60


def test_calls_that_wait_run_in_order_of_submission(shop: LocalStack, diary: Diary) -> None:
    names = [f"n{number}" for number in range(40)]
    first = shop.client.submit_many([diary.call("desk__solo", "first", gate=str(diary.gate))])
    wait_until(lambda: diary.started() == ["first"])
    calls = shop.client.submit_many([diary.call("desk__solo", name) for name in names])
    wait_until(lambda: status_of(shop.client).waiting_for_limit == 40)
    diary.gate.touch()
    assert all_ok(first + calls)
    assert diary.most_at_once() == 1
    assert diary.started() == ["first", *names]


def test_rate_holds_over_every_window(shop: LocalStack, diary: Diary) -> None:
    calls = shop.client.submit_many([diary.call("desk__paced", f"n{number}") for number in range(16)])
    counted: dict[bytes, float] = {}

    def have_ended() -> bool:
        ended = all(call.status() == "done" for call in calls)
        counted.update(starts_counted(shop))
        return ended

    wait_until(have_ended, PATIENCE)
    assert all_ok(calls)
    moments = sorted(counted.values())
    assert len(moments) == 16
    assert min(later - earlier for earlier, later in zip(moments, moments[5:], strict=False)) >= 1000
    # what counts is the start of the handler itself and not the submission, 3 s before the last one; a busy
    # machine may stand still between the two
    starts = sorted(at * 1000 for word, _, at in diary.rows() if word == "start")
    assert max(abs(at - moment) for at, moment in zip(starts, moments, strict=True)) < 2000


def starts_counted(shop: LocalStack) -> dict[bytes, float]:
    """Return the starts that the rate counts now, in ms of Redis time."""
    redis, starts = shop.client._redis, dict[bytes, float]()
    for rate in redis.keys(Keys().holders("rate:*paced*")):
        rows = cast(
            "list[tuple[bytes, float]]", redis.zrange(rate, 0, RESERVED - 1, byscore=True, withscores=True)
        )
        starts |= {name: at for name, at in rows if b" " in name}
    return starts


def test_second_call_of_instance_waits_while_other_instances_continue(shop: LocalStack, diary: Diary) -> None:
    held = [diary.call("desk__in-turn", f"a{n}", instanceKey="a b", gate=str(diary.gate)) for n in range(3)]
    mine = shop.client.submit_many(held)
    wait_until(lambda: status_of(shop.client).waiting_for_limit == 2)
    others = [diary.call("desk__in-turn", f"b{number}", instanceKey=f"b{number}") for number in range(5)]
    assert all_ok(shop.client.submit_many(others))
    assert [name for name in diary.started() if name.startswith("a")] == ["a0"]
    diary.gate.touch()
    assert all_ok(mine)


def test_waiting_calls_take_no_place_and_are_shown(crew: Crew, stack: LocalStack, diary: Diary) -> None:
    crew.muster(concurrency=2)
    calls = [diary.call("desk__solo", f"n{number}", gate=str(diary.gate)) for number in range(51)]
    waiting = stack.client.submit_many(calls)
    wait_until(lambda: status_of(stack.client).waiting_for_limit == 50)
    free = stack.client.submit_many([diary.call("free__work", f"f{number}") for number in range(10)])
    assert all_ok(free)
    status = status_of(stack.client)
    assert (status.backlog, status.running, status.waiting_for_limit) == (0, 1, 50)
    assert status.oldest_seconds is not None
    record = stack.client.record(waiting[-1].id)
    assert (record.status, record.waiting_for) == ("queued", "concurrency:desk__solo")
    diary.gate.touch()
    assert all_ok(waiting)
    assert status_of(stack.client).waiting_for_limit == 0


def test_exhausted_rate_refuses_at_once_with_retry_time(shop: LocalStack, diary: Diary) -> None:
    first, second = shop.client.submit_many([diary.call("desk__hourly", name) for name in ("one", "two")])
    assert {first.result(PATIENCE).status, second.result(PATIENCE).status} == {"ok", "error"}
    error = next(result.error for call in (first, second) if (result := call.result()).error)
    assert error.code == "E_LIMIT"
    retry = re.search(r"limited to 1/h, .* Retry in (3[56]\d\d\.\d) s, at 20\d\d-", error.message)
    assert retry is not None, error.message
    assert len(diary.started()) == 1


def test_call_waiting_past_deadline_gets_limit_error(shop: LocalStack, diary: Diary) -> None:
    held = shop.client.submit_many([diary.call("desk__solo", "held", gate=str(diary.gate))])
    wait_until(lambda: diary.started() == ["held"])
    deadline = iso_time(time.time() * 1000 + 5_000)  # by then a worker has met it, and put it into the line
    [call] = shop.client.submit_many([diary.call("desk__solo", "late", deadline=deadline)])
    late = call.result(PATIENCE)
    diary.gate.touch()
    assert all_ok(held)
    assert late.error is not None
    assert late.error.code == "E_LIMIT"
    assert re.search(r"desk__solo is limited to 1 at a time, .* Retry in about \d+\.\d s", late.error.message)
    assert status_of(shop.client).waiting_for_limit == 0
    assert diary.started() == ["held"]


def test_killed_workers_permit_frees_soon_after_lease(crew: Crew, stack: LocalStack, diary: Diary) -> None:
    [worker] = crew.muster()
    held = stack.client.submit_many([diary.call("desk__solo", "held", gate=str(diary.gate))])[0]
    wait_until(lambda: diary.started() == ["held"])
    crew.add()
    following = stack.client.submit_many([diary.call("desk__solo", f"n{number}") for number in range(3)])
    wait_until(lambda: status_of(stack.client).waiting_for_limit == 3)
    worker.kill()
    worker.wait(PATIENCE)
    assert following[-1].result(2 + MARGIN_SECONDS).status == "ok"
    assert all_ok(following)
    unknown = held.result(PATIENCE)
    assert unknown.error is not None
    assert unknown.error.code == "E_TOOL_OUTCOME_UNKNOWN"
    assert diary.started() == ["held", "n0", "n1", "n2"]


def test_calls_keep_waiting_through_worker_drain_and_replacement(diary: Diary) -> None:
    # a turn that nobody takes up within a lease goes to the next: leases outlast the start of a worker
    with LocalStack(BUNDLE) as stack:
        [worker] = stack.workers
        calls = stack.client.submit_many(
            [diary.call("desk__solo", f"n{number}", gate=str(diary.gate)) for number in range(5)]
        )
        wait_until(lambda: status_of(stack.client).waiting_for_limit == 4)
        worker.send_signal(signal.SIGTERM)
        # it takes no more calls: one that it gave back while the next one is let in would be overtaken
        wait_until(lambda: not any(one.agents for one in stack.client.workers()))
        diary.gate.touch()
        assert worker.wait(PATIENCE) == 0
        stack.start_worker()
        assert all_ok(calls)
    assert diary.started() == ["n0", "n1", "n2", "n3", "n4"]


def test_limits_outlive_restart_of_redis(diary: Diary) -> None:
    # a turn that nobody takes up within a lease goes to the next: leases outlast the workers' way back
    with LocalStack(BUNDLE, workers=2) as stack:
        calls = stack.client.submit_many(
            [diary.call("desk__solo", f"n{number}", gate=str(diary.gate)) for number in range(5)]
        )
        wait_until(lambda: status_of(stack.client).waiting_for_limit == 4)
        stack.redis.process.terminate()
        stack.redis.process.wait(PATIENCE)
        stack.redis.launch()
        diary.gate.touch()
        assert all_ok(calls)
    assert diary.most_at_once() == 1
    assert diary.started() == ["n0", "n1", "n2", "n3", "n4"]


def test_limits_hold_for_calls_of_plain_celery(shop: LocalStack, diary: Diary) -> None:
    with plain_celery(shop.redis_url) as app:
        sent = [
            app.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.clerk")
            for call in (diary.call("desk__solo", f"n{number}", seconds=0.05) for number in range(10))
        ]
        results = [result.get(timeout=PATIENCE) for result in sent]
    assert [result["status"] for result in results] == ["ok"] * 10
    assert diary.most_at_once() == 1


def test_script_work_per_call_does_not_grow_with_backlog(crew: Crew, stack: LocalStack, diary: Diary) -> None:
    crew.muster()
    with Redis.from_url(stack.redis_url) as redis:
        commands = [_commands_of(redis, stack, diary, count) / count for count in (20, 400)]
    assert diary.most_at_once() == 1
    assert len(diary.started()) == 420
    assert commands[1] < 1.5 * commands[0]


def _commands_of(redis: Redis, stack: LocalStack, diary: Diary, count: int) -> int:
    """Let so many calls wait for one permit, and return how many commands all scripts have run."""
    redis.config_resetstat()
    calls = [diary.call("desk__solo", f"{count}-{number}") for number in range(count)]
    assert all_ok(stack.client.submit_many(calls))
    stats: dict[str, Any] = redis.info("commandstats")
    return sum(one["calls"] for one in stats.values())


def test_plain_celery_calls_wait_in_sending_order(crew: Crew, stack: LocalStack, diary: Diary) -> None:
    crew.muster(concurrency=8)
    names = [f"p{number}" for number in range(20)]
    with plain_celery(stack.redis_url) as app:
        sent = [
            app.send_task(
                "goondan.tool_call",
                kwargs={"call": {"toolName": "desk__solo", "args": diary.call("desk__solo", name)["args"]}},
                queue="agent.clerk",
            )
            for name in names
        ]
        assert [one.get(timeout=PATIENCE)["status"] for one in sent] == ["ok"] * len(sent)
    assert diary.started() == names
