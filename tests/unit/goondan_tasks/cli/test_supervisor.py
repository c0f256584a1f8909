"""Keeping processes running."""

import io
import signal
import subprocess
from typing import Any

import pytest

from goondan_tasks.cli.supervisor import Supervisor


class FakeProcess:
    """A process that runs until the test says otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = io.BytesIO(b"first line\n\xff\xfe second\r\n")
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.signals.append(signal.SIGTERM)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.returncode = -signal.SIGKILL


class FakeGroup:
    """Starts fake processes and keeps them."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.commands: list[list[str]] = []

    def start(self, command: list[str], *, env: dict[str, str], output: int) -> FakeProcess:
        assert (env["A"], env["PYTHONUNBUFFERED"], output) == ("b", "1", subprocess.PIPE)
        self.commands.append(command)
        self.processes.append(FakeProcess(len(self.processes) + 1))
        return self.processes[-1]


class Stage:
    """A supervisor with fake processes, a clock of the test's own, and what it said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.group = FakeGroup()
        self.told: list[tuple[str, str]] = []
        group: Any = self.group
        self.supervisor = Supervisor(
            group,
            {"A": "b"},
            tell=lambda name, text: self.told.append((name, text)),
            grace_seconds=30,
            clock=lambda: self.now,
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.supervisor.look_after()


@pytest.fixture
def stage() -> Stage:
    """Start one process named coder."""
    stage = Stage()
    stage.supervisor.start("coder", ["run"])
    return stage


def test_a_process_that_runs_is_left_alone(stage: Stage) -> None:
    stage.pass_time(1000)

    assert len(stage.group.processes) == 1
    assert stage.supervisor.pid("coder") == 1


def test_a_process_that_died_is_started_again_after_a_delay(stage: Stage) -> None:
    stage.group.processes[0].returncode = 3

    stage.pass_time(0.5)
    assert ("coder", "ended with 3; starting it again in 1 s") in stage.told
    stage.pass_time(0.9)
    assert len(stage.group.processes) == 1
    stage.pass_time(0.1)

    assert stage.group.commands == [["run"], ["run"]]
    assert stage.supervisor.pid("coder") == 2


def test_a_process_that_was_killed_is_told_with_its_signal(stage: Stage) -> None:
    stage.group.processes[0].returncode = -9

    stage.pass_time(0)

    assert ("coder", "was ended by signal 9; starting it again in 1 s") in stage.told


def test_the_delay_doubles_up_to_half_a_minute(stage: Stage) -> None:
    delays = [crash_at_once(stage) for _ in range(7)]

    assert delays == ["1 s", "2 s", "4 s", "8 s", "16 s", "30 s", "30 s"]


def test_after_a_minute_of_health_the_delay_begins_anew(stage: Stage) -> None:
    for _ in range(3):
        crash_at_once(stage)
    stage.pass_time(60)

    assert crash_at_once(stage) == "1 s"


def crash_at_once(stage: Stage) -> str:
    """Let the process die, be told and be started again; return the delay that was told."""
    stage.group.processes[-1].returncode = 1
    stage.pass_time(0)
    [*_, text] = [text for _, text in stage.told if "again in" in text]
    stage.pass_time(30)
    return text.rpartition("again in ")[2]


def test_a_process_that_is_stopped_is_not_started_again(stage: Stage) -> None:
    stage.supervisor.stop("coder")
    stage.group.processes[0].returncode = 0
    stage.pass_time(100)

    assert stage.group.processes[0].signals == [signal.SIGTERM]
    assert len(stage.group.processes) == 1


def test_a_process_that_does_not_stop_within_its_grace_period_is_killed(stage: Stage) -> None:
    stage.supervisor.stop("coder")
    stage.pass_time(34)
    assert stage.group.processes[0].signals == [signal.SIGTERM]
    stage.pass_time(1)

    assert stage.group.processes[0].signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_new_process_may_take_the_name_while_the_old_one_leaves(stage: Stage) -> None:
    stage.supervisor.stop("coder")
    stage.supervisor.start("coder", ["run", "anew"])
    stage.pass_time(1)

    assert stage.supervisor.pid("coder") == 2
    assert stage.group.processes[1].signals == []
