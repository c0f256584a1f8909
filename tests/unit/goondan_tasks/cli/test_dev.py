"""What goondan dev keeps running, shows and notices."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from watchfiles import Change

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.agent_registry import AgentRecord
from goondan_tasks.cli.dev import DevScreen, changes_of, files_that_matter, is_followed
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write
from tests.waiting import wait_until

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


def test_workers_restart_where_no_revision_is_followed(dev: Dev) -> None:
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
