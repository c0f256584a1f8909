"""Programs that are asked to stop while Redis is silent: it is there, and answers nothing."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from broker_config.hard_end import END_SECONDS
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.integration.test_held_interpreter import noted
from tests.waiting import wait_until
from workers.pool.drain import LATE_SHUTDOWN_SECONDS, LATEST_SECONDS

HELD_INTERPRETER_BUNDLE = Path(__file__).parent.parent / "bundles" / "held-interpreter"
GRACE_SECONDS = 1
#: what a busy machine may add
MARGIN_SECONDS = 20
WORKER_SECONDS = GRACE_SECONDS + LATEST_SECONDS + LATE_SHUTDOWN_SECONDS + MARGIN_SECONDS
PROGRAM_SECONDS = GRACE_SECONDS + END_SECONDS + MARGIN_SECONDS
PROGRAMS = [
    ["orchestrator"],
    ["metrics", "--port", "0"],
    ["callbacks", "serve", "--port", "0"],
    ["mcp-server", "--agent", "holder", "--http", "--port", "0"],
]


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    times = {"GOONDAN_LEASE_SECONDS": "3", "GOONDAN_GRACE_SECONDS": str(GRACE_SECONDS)}
    with LocalStack(HELD_INTERPRETER_BUNDLE, environment=times) as stack:
        yield stack


@contextmanager
def silent(stack: LocalStack) -> Iterator[None]:
    os.kill(stack.redis.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stack.redis.process.pid, signal.SIGCONT)


def test_idle_worker_ends_after_grace_on_silent_redis(stack: LocalStack) -> None:
    [worker] = stack.workers

    with silent(stack):
        worker.terminate()
        worker.wait(WORKER_SECONDS)


def test_busy_worker_ends_after_grace_on_silent_redis(stack: LocalStack, tmp_path: Path) -> None:
    [worker] = stack.workers
    stack.client.submit("holder", "hold__beside", {"place": str(tmp_path)})
    wait_until(lambda: noted(tmp_path, "beside"))

    with silent(stack):
        worker.terminate()
        worker.wait(WORKER_SECONDS)


def test_programs_end_while_redis_is_silent(stack: LocalStack) -> None:
    env = environment(redis_url=stack.redis_url, bundle=HELD_INTERPRETER_BUNDLE, grace_seconds=GRACE_SECONDS)
    with ExitStack() as ends:
        programs = {
            command[0]: ends.enter_context(start(*command, "--json", env=env, errors=subprocess.DEVNULL))
            for command in PROGRAMS
        }
        for program in programs.values():
            ends.callback(program.kill)
            assert program.stdout is not None
            assert program.stdout.readline()  # it runs

        with silent(stack):
            for program in programs.values():
                program.terminate()
            wait_until(lambda: not running(programs), PROGRAM_SECONDS, show=lambda: running(programs))


def running(programs: Mapping[str, "subprocess.Popen[str]"]) -> list[str]:
    return [name for name, program in programs.items() if program.poll() is None]
