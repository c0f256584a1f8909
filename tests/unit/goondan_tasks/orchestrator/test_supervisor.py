"""Supervised processes, and the crash back-off of agents' workers."""

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from broker_config.process_group import ProcessGroup
from goondan_tasks.orchestrator.supervisor import LoggedProcess, Supervisor, start_detached, start_in_group


class Program:
    """A program that runs until the test says otherwise."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.process: Any = SimpleNamespace(poll=lambda: self.status)

    def reason(self) -> str:
        return f"It ended with {self.status}.\nits last line"


class Kept:
    """A supervisor that keeps one program running; time passes as the test says."""

    def __init__(self, *, may_end: bool = False) -> None:
        self.now = 0.0
        self.programs: list[Any] = []
        self.told: list[str] = []
        self.supervisor = Supervisor(lambda agent: self.start(), 30, clock=lambda: self.now)
        self.supervisor.keep(self.start, self.told.append, may_end=may_end)

    def start(self) -> Any:
        self.programs.append(Program())
        return self.programs[-1]

    def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        assert self.supervisor.ended() == []

    def pause_after_crash(self) -> str:
        """Crash the program, wait until it has been restarted, and return the pause that was announced."""
        self.programs[-1].status = 1
        self.look()
        self.look(30)
        return self.told[-1].rpartition(" in ")[2]


def test_running_program_is_left_alone() -> None:
    kept = Kept()
    kept.look(1000)

    assert (len(kept.programs), kept.told) == (1, [])


def test_program_allowed_to_end_restarts_only_after_failure() -> None:
    kept = Kept(may_end=True)
    assert kept.pause_after_crash() == "1 s."
    kept.programs[1].status = 0
    kept.look(1)
    kept.look(1000)

    assert (len(kept.programs), len(kept.told)) == (2, 1)


def test_program_that_ended_is_restarted_after_its_pause() -> None:
    kept = Kept()
    kept.programs[0].status = 3
    kept.look(0.5)
    kept.look(0.9)
    assert (len(kept.programs), kept.told) == (1, ["It ended with 3. It is restarted in 1 s."])

    kept.look(0.1)
    kept.look(100)
    assert (len(kept.programs), len(kept.told)) == (2, 1)


def test_pause_doubles_to_limit_and_resets_when_healthy() -> None:
    kept = Kept()
    pauses = [kept.pause_after_crash() for _ in range(7)]
    kept.look(60)

    assert pauses == ["1 s.", "2 s.", "4 s.", "8 s.", "16 s.", "30 s.", "30 s."]
    assert kept.pause_after_crash() == "1 s."


SCRIPT = (
    r"import sys; print('\x1b[1mfirst\x1b[0m'); sys.stdout.buffer.write(b'\xff\r\n'); sys.exit('last words')"
)


def test_worker_reports_its_end_with_last_lines(capfd: pytest.CaptureFixture[str]) -> None:
    worker = start_detached([sys.executable, "-c", SCRIPT], os.environ)

    assert worker.reason() == "It ended with 1.\nfirst\n\ufffd\nlast words"


def test_group_process_passes_lines_and_reports_end() -> None:
    told: list[tuple[str, str]] = []
    with ProcessGroup() as group:
        command = [sys.executable, "-c", SCRIPT]
        process = start_in_group(
            group, "coder", command, environment=os.environ, tell=lambda *line: told.append(line)
        )
        assert process.reason() == "It ended with 1.\nfirst\n\ufffd\nlast words"

    assert told == [("coder", "\x1b[1mfirst\x1b[0m"), ("coder", "\ufffd"), ("coder", "last words")]


def test_end_ends_workers_and_programs() -> None:
    with ProcessGroup() as group:

        def start(name: str) -> LoggedProcess:
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            return start_in_group(group, name, command, environment=os.environ, tell=lambda *_: None)

        supervisor = Supervisor(lambda agents: start(agents[0]), 0)
        worker = supervisor.start(("coder",), "g1", 0).process
        flower = start("flower")
        supervisor.keep(lambda: flower, lambda _: None)
        supervisor.end()

        assert (worker.poll(), flower.process.poll()) == (-signal.SIGTERM, -signal.SIGTERM)
        assert (supervisor.present, supervisor.ended()) == ({}, [])
