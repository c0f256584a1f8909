"""Workers forked from one process that has imported everything: storms start hundreds of them.

The parent of the workers runs this file: for each line on stdin, ``CONCURRENCY REDIS_URL LOG``, it forks and
answers with the child's process id. From there on the child is an ordinary worker: it does what
``goondan worker`` does, with imports that are done already.
"""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import celery.worker.worker  # noqa: F401 - what a worker imports, once for all
import pydantic_ai.models.openai  # noqa: F401 - agents that think

import workers.tasks  # noqa: F401
from goondan_tasks.celery import run_worker
from goondan_tasks.testing import LocalStack
from tests.faults.crowd import AGENT
from tests.processes import runs
from tests.waiting import wait_until


class ForkedWorker:
    """A worker process, with the part of ``subprocess.Popen`` that a fleet uses."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log

    def poll(self) -> int | None:
        """Return None while the process runs; how it ended is not known."""
        return None if runs(self.pid) else 0

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        if runs(self.pid):
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Wait for the end."""
        wait_until(lambda: not runs(self.pid), timeout)
        return 0


class Nursery:
    """Starts workers of a stack in a few hundred milliseconds each; they end with the stack."""

    def __init__(self, stack: LocalStack, directory: Path, **environment: str) -> None:
        self._directory = directory
        self._redis_url = stack.redis_url
        self._numbers = itertools.count(1)
        with (directory / "nursery.log").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=Path(__file__).parents[2],
                env={**stack._worker_environment(), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                process_group=stack._group._anchor.pid,
            )

    def launch(self, redis_url: str | None = None, concurrency: int = 8) -> ForkedWorker:
        """Fork one worker, which reaches Redis at the stack's URL or at another one."""
        log = self._directory / f"forked-{next(self._numbers)}.log"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{concurrency} {redis_url or self._redis_url} {log}\n".encode())
        self._process.stdin.flush()
        return ForkedWorker(int(self._process.stdout.readline()), log)

    def close(self) -> None:
        """End the parent; its workers stay."""
        self._process.kill()
        self._process.communicate()


def _be_worker(concurrency: str, redis_url: str, log: str) -> None:
    os.environ.update(GOONDAN_REDIS_URL=redis_url, GOONDAN_BROKER_URL=redis_url)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    queues = [f"agent.{AGENT}", f"agent.{AGENT}.events"]
    run_worker(f"{AGENT}-{os.getpid()}@%h", queues, concurrency=int(concurrency), log_level="warning")


def main() -> None:
    """Fork a worker for each line, until nobody can send one any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _be_worker(*line.strip().split(" ", 2))
            return
        print(child, flush=True)


if __name__ == "__main__":
    main()
