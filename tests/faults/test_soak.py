"""A hundred thousand calls with every ending: nothing grows."""

import os
import time
from collections import Counter
from typing import Any

import pytest

from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT
from tests.faults.footprint import Footprint
from tests.faults.idle import wait_until_idle
from tests.faults.sizes import SOAK_CALLS, SOAK_WARM_UP
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]

RESULT_TTL_SECONDS = 5
BATCH = 1_000

#: flat means: after the warm-up (caches and pools are full then) and at the end, each time idle and with the
#: results expired, Redis has the same keys but for these, and everything else grows by no more than this
KEYS = 5
#: (three bytes for each call would be more)
REDIS_GROWTH = RSS_GROWTH = 1.10
#: a pool has at most a thread for each slot, and one that leads, and each may wait for Redis on a connection
#: of its own: how many it needs is chance
THREADS = FILES = 9

QUICK = {"log": "/dev/null", "number": 0, "seconds": 0}
#: how many of a hundred calls: tool, arguments, how it ends
MIX: list[tuple[int, str, Any, str]] = [
    (40, "mixed__strict", {"number": 1}, "ok"),
    (25, "again__async", QUICK, "ok"),
    (5, "once__sync", QUICK, "ok"),
    (5, "mixed__big", {"size": 20_000}, "ok"),
    (9, "mixed__raises", {}, "E_TOOL"),
    (8, "mixed__strict", {"number": "one"}, "E_TOOL_INVALID_ARGS"),
    (5, "mixed__unheard-of", {}, "E_TOOL_NOT_IN_CATALOG"),
    (2, "mixed__slow", {}, "E_TOOL_TIMEOUT"),
    (1, "mixed__slow-sync", {}, "E_TOOL_TIMEOUT"),
]
DECK = [(tool, args, ending) for share, tool, args, ending in MIX for _ in range(share)]


def test_hundred_thousand_calls_leave_no_growth(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {
        **ENVIRONMENT,
        "GOONDAN_RESULT_TTL_SECONDS": str(RESULT_TTL_SECONDS),
        "GOONDAN_LOG_LEVEL": "error",
    }
    with LocalStack(LOAD_BUNDLE, workers=1, environment=environment) as stack:
        endings: Counter[str] = Counter()
        begun = time.monotonic()

        def work(calls: int) -> None:
            before: list[PendingCall] = []
            for done in range(0, calls + BATCH, BATCH):  # one batch is submitted while the last one runs
                batch = submit(stack) if done < calls else []
                endings.update(check(before))
                before = batch
                with capsys.disabled():
                    rate = endings.total() / (time.monotonic() - begun)
                    print(
                        f"\rsoak: {endings.total()} of {SOAK_CALLS} calls, {rate:.0f}/s ", end="", flush=True
                    )

        work(SOAK_WARM_UP)
        early = idle_footprint(stack)
        work(SOAK_CALLS - SOAK_WARM_UP)
        late = idle_footprint(stack)
    say([f"{endings.total()} calls: {dict(endings)}", f"early {early.line()}", f"late  {late.line()}"])
    assert endings.total() == SOAK_CALLS
    assert_flat(early, late)


def submit(stack: LocalStack) -> list[PendingCall]:
    return stack.client.submit_many(
        {"agentName": AGENT, "toolName": tool, "args": args}
        for tool, args, _ in (DECK[number % len(DECK)] for number in range(BATCH))
    )


def check(calls: list[PendingCall]) -> list[str]:
    """Wait for a batch and return how its calls ended, which must be as expected."""
    results = [call.result(60) for call in calls]
    endings = ["ok" if result.error is None else result.error.code for result in results]
    assert endings == [DECK[number % len(DECK)][2] for number in range(len(calls))]
    return endings


def idle_footprint(stack: LocalStack) -> Footprint:
    """Wait until every result has expired, and look."""
    redis = stack.client._redis
    wait_until_idle(stack.redis_url, 60)
    wait_until(lambda: expired(stack), 60)
    return Footprint.of(redis, worker=stack.workers[0].pid, producer=os.getpid())


def expired(stack: LocalStack) -> bool:
    keys = stack.client._redis.scan_iter("*", count=10_000)
    return not any(key.startswith(b"goondan:call:") for key in keys)


def assert_flat(early: Footprint, late: Footprint) -> None:
    assert late.keys <= early.keys + KEYS
    assert late.redis_bytes <= early.redis_bytes * REDIS_GROWTH
    for name, process in late.processes.items():
        before = early.processes[name]
        assert process.rss <= before.rss * RSS_GROWTH, name
        assert process.files <= before.files + FILES, name
        assert process.threads <= before.threads + THREADS, name
