"""Redis answers with errors until they pass: workers wait and go on, and producers are told why."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.testing import LocalStack
from tests.faults import redis_states
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE
from tests.faults.crowd import AGENT
from tests.faults.handler_log import HandlerLog
from tests.faults.proxied import ProxiedStack, proxied_stack
from tests.faults.redis_states import STATES, State
from tests.faults.sizes import LEASE_SECONDS
from tests.faults.work import submit_work, work_args
from tests.waiting import wait_until

#: an unreachable broker says so within 10 s (DESIGN "Commands")
TOLD_SECONDS = 10
#: how long a result is waited for meanwhile
WAITED_SECONDS = 2
#: how soon after the state calls are answered again
BACK_SECONDS = 30
#: parts of a worker say once each that Redis refuses: main loop, leases, results, heartbeat
MOST_LINES = 8

SHORT = (redis_states.read_only, redis_states.busy, redis_states.other_password)


@pytest.fixture(scope="module")
def stack() -> Iterator[ProxiedStack]:
    with proxied_stack(LOAD_BUNDLE, {**ENVIRONMENT, "GOONDAN_CONNECT_TIMEOUT_SECONDS": "1"}) as stack:
        stack.start_worker()
        yield stack


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


def states() -> list["pytest.ParameterSet"]:
    """Return three states for a moment, and each for two leases."""
    long = [pytest.mark.long]
    return [
        *(pytest.param(state, 0.0, id=f"{state.__name__}-short") for state in SHORT),
        *(pytest.param(state, 2.0 * LEASE_SECONDS, id=state.__name__, marks=long) for state in STATES),
    ]


def said(stack: LocalStack, since: int) -> str:
    """Return what the worker has written beyond its first ``since`` characters."""
    return stack.log(stack.workers[0])[since:]


def doctor(url: str) -> str:
    """Return what the doctor finds fault with."""
    command = [sys.executable, "-m", "goondan_tasks", "doctor", "--json"]
    environment = {**os.environ, "GOONDAN_REDIS_URL": url}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    found = json.loads(done.stdout)
    return str([check for check in found["checks"] if check["level"] == "problem"])


@pytest.mark.faults
@pytest.mark.parametrize(("state", "seconds"), states())
def test_worker_waits_until_redis_accepts_commands_again(
    stack: ProxiedStack, log: HandlerLog, numbers: Iterator[int], state: State, seconds: float
) -> None:
    [worker] = stack.workers
    cause = STATES[state]
    first, refused, last = (next(numbers) for _ in range(3))
    since = len(stack.log(worker))
    running = submit_work(stack.client, log, number=first, seconds=4.0)
    wait_until(lambda: log.runs_of(first))
    name = f"refused-{refused}"
    with stack.client_beside() as producer:
        with state(stack.redis, stack.proxy):
            asked_at = time.monotonic()
            with pytest.raises(BrokerUnreachableError, match=cause) as refusal:
                producer.submit(AGENT, "once__sync", work_args(log, refused, 0), tool_call_id=name)
            assert time.monotonic() - asked_at <= TOLD_SECONDS
            with pytest.raises(BrokerUnreachableError, match=cause):
                producer.pending(running.id).result(WAITED_SECONDS)
            wait_until(lambda: re.search(cause, said(stack, since)))
            wait_until(lambda: log.runs_of(first)[0].ended_at)
            threading.Event().wait(seconds)
            assert worker.poll() is None
            assert re.search(cause, doctor(stack.proxy.url))
        again = producer.submit(AGENT, "once__sync", work_args(log, refused, 0), tool_call_id=name)
        assert again.result(BACK_SECONDS).status == "ok"
    assert submit_work(stack.client, log, number=last).result(BACK_SECONDS).status == "ok"
    assert running.result(BACK_SECONDS).status == "ok"
    assert refusal.value.suggestion != BrokerUnreachableError.suggestion  # it says what to do about this one
    assert {number: len(runs) for number, runs in log.runs().items()} == {first: 1, refused: 1, last: 1}
    assert worker.poll() is None
    lines = [line for line in said(stack, since).splitlines() if re.search(cause, line)]
    assert len(lines) <= MOST_LINES, lines
    assert "Traceback" not in said(stack, since)
