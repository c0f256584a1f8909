"""Programs end with the worker process that started them, ``kill -9`` included."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes import runs
from tests.waiting import wait_until

WORKER = """
import os, sys, threading
from pathlib import Path
from workers.processes.programs import ProcessRunner

run = ProcessRunner(Path(sys.argv[1]))
script = '''
setsid sh -c 'trap "" TERM HUP; echo $$ > session.pid; while :; do sleep 60; done' &
(setsid sh -c 'echo $$ > daemon.pid; exec sleep 60' > /dev/null 2>&1 &)
trap "" TERM
echo $$ > program.pid
while :; do sleep 60; done
'''
thread = threading.Thread(target=run, args=(["sh", "-c", script],), daemon=True)
thread.start()
if "fork" in sys.argv:
    while not Path(sys.argv[1], "program.pid").exists():
        pass
    if os.fork() == 0:
        import time
        Path(sys.argv[1], "fork.pid").write_text(str(os.getpid()))
        time.sleep(60)
thread.join()
"""


@contextmanager
def worker(directory: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(directory), *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def pids(directory: Path, *names: str) -> list[int]:
    texts = [file.read_text() for name in names if (file := directory / f"{name}.pid").exists()]
    return [int(text) for text in texts if text.strip()]


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


TREE = ("program", "session", "daemon")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_tree_ends_with_its_killed_worker(tmp_path: Path, number: signal.Signals) -> None:
    with worker(tmp_path) as process:
        wait_until(lambda: len(pids(tmp_path, *TREE)) == 3)
        [program] = pids(tmp_path, "program")
        tree = [*pids(tmp_path, *TREE), parent(program)]
        assert all(map(runs, tree))

        process.send_signal(number)
        process.wait()

        wait_until(lambda: not any(map(runs, tree)))


def test_tree_ends_although_fork_of_worker_lives_on(tmp_path: Path) -> None:
    with worker(tmp_path, "fork") as process:
        wait_until(lambda: len(pids(tmp_path, *TREE, "fork")) == 4)
        tree = pids(tmp_path, *TREE)
        [fork] = pids(tmp_path, "fork")

        process.kill()
        process.wait()

        wait_until(lambda: not any(map(runs, tree)))
        assert runs(fork)
        os.kill(fork, signal.SIGKILL)


def test_program_ends_with_its_killed_guard_and_worker(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        wait_until(lambda: len(pids(tmp_path, *TREE)) == 3)
        tree = pids(tmp_path, *TREE)
        [program] = pids(tmp_path, "program")

        os.kill(process.pid, signal.SIGSTOP)
        os.kill(parent(program), signal.SIGKILL)

        wait_until(lambda: not runs(program))
        for pid in tree:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
