"""What goondan dev keeps running, shows and notices."""

import io
import itertools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from watchfiles import Change

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.agent_registry import AgentRecord
from goondan_tasks.cli.dev import (
    DevScreen,
    KeptProcess,
    changes_of,
    files_that_matter,
    is_followed,
)
from goondan_tasks.orchestrator.supervisor import GroupProcess
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write
from tests.waiting import wait_until


class FakeProcess:
    """A process that runs until the test says otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = io.BytesIO(b"first line\n\xff\xfe second\r\n")

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        return self.returncode


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
    """A kept process that is a fake, a clock of the test's own, and what was said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.group = FakeGroup()
        self.told: list[str] = []
        group: Any = self.group
        self.lines: list[tuple[str, str]] = []
        self.kept = KeptProcess(
            lambda: GroupProcess.start(
                group,
                "flower",
                ["run"],
                environment={"A": "b"},
                tell=lambda name, text: self.lines.append((name, text)),
            ),
            self.told.append,
            clock=lambda: self.now,
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.kept.look()


@pytest.fixture
def stage() -> Stage:
    """Start one process."""
    return Stage()


def test_a_process_that_runs_is_left_alone(stage: Stage) -> None:
    stage.pass_time(1000)

    assert len(stage.group.processes) == 1


def test_a_process_that_died_is_started_again_after_a_delay(stage: Stage) -> None:
    stage.group.processes[0].returncode = 3

    stage.pass_time(0.5)
    assert "ended with 3; starting it again in 1 s" in stage.told
    stage.pass_time(0.9)
    assert len(stage.group.processes) == 1
    stage.pass_time(0.1)

    assert stage.group.commands == [["run"], ["run"]]
    assert stage.kept.current.process.pid == 2


def test_a_process_that_was_killed_is_told_with_its_signal(stage: Stage) -> None:
    stage.group.processes[0].returncode = -9

    stage.pass_time(0)

    assert "was ended by signal 9; starting it again in 1 s" in stage.told


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
    [*_, text] = stage.told
    stage.pass_time(30)
    return text.rpartition("again in ")[2]


def test_what_it_prints_stands_behind_its_name(stage: Stage) -> None:
    wait_until(lambda: len(stage.lines) == 2)

    assert stage.lines == [("flower", "first line"), ("flower", "\ufffd\ufffd second")]


def test_why_it_ended_is_told_with_its_last_lines(stage: Stage) -> None:
    stage.group.processes[0].returncode = 3

    assert stage.kept.current.reason() == "It ended with 3.\nfirst line\n\ufffd\ufffd second"


AGENT = AgentRecord(name="coder", swarm="default", workspace="den")


class Dev:
    """A bundle that dev watches, and the record of its workers."""

    def __init__(self, bundle: GitBundle, redis: fakeredis.FakeRedis) -> None:
        self.bundle = bundle
        self.redis = redis
        self.record = ActiveRevision(redis, Keys(), "den")
        self.stop = threading.Event()

    def follows(self) -> bool:
        return is_followed(self.bundle.folder, AGENT, Settings.load(), self.redis, stop=self.stop)


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dev]:
    monkeypatch.setattr("goondan_tasks.cli.dev.COMMIT_SECONDS", 0.4)
    with fakeredis.FakeRedis() as redis:
        yield Dev(make_bundle(tmp_path / "bundle"), redis)


def test_where_no_revision_is_followed_workers_are_started_anew(dev: Dev) -> None:
    assert not dev.follows()


def test_what_is_active_or_proposed_is_followed(dev: Dev) -> None:
    dev.record.begin(f"git:{dev.bundle.head}")
    assert dev.follows()
    ref = f"git:{dev.bundle.commit({'prompts/coder.md': 'new'})}"
    dev.record.propose(RevisionChange(new_ref=ref, timestamp="2026-01-01T00:00:00.000Z"))
    assert dev.follows()


def test_a_commit_that_is_still_being_made_is_waited_for(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goondan_tasks.cli.dev.COMMIT_SECONDS", 60)
    dev.record.begin(f"git:{'0' * 40}")
    change = RevisionChange(new_ref=f"git:{dev.bundle.head}", timestamp="2026-01-01T00:00:00.000Z")
    proposing = threading.Timer(0.1, dev.record.propose, [change])
    proposing.start()
    assert dev.follows()
    proposing.join()


def test_a_persons_edits_are_not_followed(dev: Dev) -> None:
    dev.record.begin(f"git:{dev.bundle.head}")
    write(dev.bundle.folder, {"prompts/coder.md": "by hand"})
    assert not dev.follows()


def test_who_stops_dev_does_not_wait(dev: Dev) -> None:
    dev.record.begin(f"git:{'0' * 40}")
    dev.stop.set()
    assert dev.follows()


def test_lines_stand_behind_the_names_of_their_processes(capsys: pytest.CaptureFixture[str]) -> None:
    screen = DevScreen()

    screen.line("worker coder", "ready \x1b[2J")
    screen.line("worker with-a-long-name", "[bold]ready")
    screen.line("flower", "two\nlines")

    assert capsys.readouterr().err.splitlines() == [
        "worker coder    | ready \\x1b[2J",
        "worker with-a-long-name | [bold]ready",
        "flower                  | two",
        "flower                  | lines",
    ]


def test_what_to_paste_into_another_terminal_is_quoted_for_the_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    DevScreen().places("redis://:p@127.0.0.1:1/0", None, Path("/my bundle"), is_own_redis=True)

    shown = capsys.readouterr().err
    assert "export GOONDAN_REDIS_URL=redis://:p@127.0.0.1:1/0 GOONDAN_BUNDLE='/my bundle'\n" in shown
    assert "Flower" not in shown
    assert "not a private one" not in shown


def test_a_redis_that_was_named_is_told_from_a_private_one(capsys: pytest.CaptureFixture[str]) -> None:
    DevScreen().places("redis://:p@127.0.0.1:1/0", None, Path("/bundle"), is_own_redis=False)

    assert "from --redis-url or GOONDAN_REDIS_URL" in capsys.readouterr().err


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """End the watch after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("path", "matters"),
    [
        ("/b/goondan.yaml", True),
        ("/b/agents.yml", True),
        ("/b/tools/plan.py", True),
        ("/b/notes.txt", False),
        ("/b/tools/__pycache__/plan.cpython-311.pyc", False),
        ("/b/.git/config.yaml", False),
        ("/b/.venv/lib/x.py", False),
        ("/b/state/workspaces/w/instances/i/workspace/made.py", False),
    ],
)
def test_yaml_and_python_matter_but_not_what_tools_write(path: str, matters: bool) -> None:
    assert files_that_matter(Path("/b/state"))(Change.modified, path) is matters


@pytest.mark.parametrize("name", ["", "goondan.yaml"])
def test_a_change_is_noticed_in_a_directory_and_beside_a_single_file(
    name: str, tmp_path: Path, stop: threading.Event
) -> None:
    (tmp_path / "goondan.yaml").touch()
    looks = changes_of(tmp_path / name, tmp_path / "state", stop)
    contents = map(str, itertools.count())

    def is_noticed() -> bool:
        (tmp_path / "goondan.yaml").write_text(next(contents), encoding="utf-8")
        return next(looks)

    wait_until(is_noticed)


def test_without_a_change_nothing_is_noticed(tmp_path: Path, stop: threading.Event) -> None:
    looks = changes_of(tmp_path, tmp_path / "state", stop)

    assert not next(looks)
    stop.set()
    assert list(looks) == []
