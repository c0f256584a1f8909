"""Programs that are asked to stop while Redis is silent: it is there, and answers nothing."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goondan_tasks.cli.session import END_SECONDS
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.integration.test_held_interpreter import noted
from tests.waiting import wait_until
from workers.pool.drain import LATE_SHUTDOWN_SECONDS, LATEST_SECONDS

HOLDUP = Path(__file__).parent.parent / "bundles" / "holdup"
GRACE_SECONDS = 1
#: what a busy machine may add
MARGIN_SECONDS = 20
WORKER_SECONDS = GRACE_SECONDS + LATEST_SECONDS + LATE_SHUTDOWN_SECONDS + MARGIN_SECONDS


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    times = {"GOONDAN_LEASE_SECONDS": "3", "GOONDAN_GRACE_SECONDS": str(GRACE_SECONDS)}
    with LocalStack(HOLDUP, environment=times) as stack:
        yield stack


@contextmanager
def silent(stack: LocalStack) -> Iterator[None]:
    os.kill(stack.redis.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stack.redis.process.pid, signal.SIGCONT)


def test_an_idle_worker_ends_after_its_grace_period_while_redis_is_silent(stack: LocalStack) -> None:
    [worker] = stack.workers

    with silent(stack):
        worker.terminate()
        worker.wait(WORKER_SECONDS)


def test_a_worker_with_a_running_call_ends_after_its_grace_period_while_redis_is_silent(
    stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = stack.workers
    stack.client.submit("holder", "hold__beside", {"place": str(tmp_path)})
    wait_until(lambda: noted(tmp_path, "beside"))

    with silent(stack):
        worker.terminate()
        worker.wait(WORKER_SECONDS)


@pytest.mark.parametrize(
    "command",
    [
        ["orchestrator"],
        ["metrics", "--port", "0"],
        ["callbacks", "serve", "--port", "0"],
        ["mcp-server", "--agent", "holder", "--http", "--port", "0"],
    ],
    ids=lambda command: command[0],
)
def test_a_program_ends_while_redis_is_silent(stack: LocalStack, command: list[str]) -> None:
    env = environment(redis_url=stack.redis_url, bundle=HOLDUP, grace_seconds=GRACE_SECONDS)
    with start(*command, "--json", env=env, errors=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert program.stdout.readline()  # it runs

        with silent(stack):
            program.terminate()
            try:
                program.wait(GRACE_SECONDS + END_SECONDS + MARGIN_SECONDS)
            finally:
                program.kill()
