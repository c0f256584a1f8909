"""What goondan dev keeps running, shows and notices."""

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import watchfiles
from watchfiles import Change

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli import folder
from goondan_tasks.cli.dev import DevScreen, _console_url, add_variables
from goondan_tasks.cli.folder import CheckedBundle, FolderRevisions, changes_of, files_that_matter
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.fleet.agent_registry import AgentRegistry, describe_agents
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange, RevisionFailure
from goondan_tasks.revisions.checkouts import BundleRef, Checkout, RevisionSource
from tests.git_bundle import FILES, make_bundle
from tests.unit.goondan_tasks.bundle.writing import HANDLERS, write
from tests.unit.goondan_tasks.cli.fake_client import FakeClient, worker
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.waiting import wait_until

CHANGE = RevisionChange(new_ref="", timestamp="2026-01-01T00:00:00.000Z")
ALLOWED = """
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec: { entryAgent: Agent/coder, agents: [Agent/coder], policy: { changesets: { enabled: true } } }
"""


class Dev:
    """The folder of a bundle that allows changesets, or does not, and the record of its workers."""

    def __init__(self, tmp_path: Path, redis: fakeredis.FakeRedis, policy: str = "") -> None:
        files = {**FILES, "goondan.yaml": FILES["goondan.yaml"] + policy, "echo.py": HANDLERS}
        self.bundle = make_bundle(tmp_path / "bundle", files=files)
        self.folder = self.bundle.folder
        self.settings = Settings.load(cache_dir=tmp_path / "cache", workspace="den")
        self.redis = redis
        self.record = ActiveRevision(redis, Keys(), "den")
        self.stop = threading.Event()
        self.revisions = FolderRevisions.of(self.folder, self.checked(), self.settings, redis)

    def checked(self) -> CheckedBundle:
        bundle = load_bundle(self.folder)
        return CheckedBundle(bundle, describe_agents(bundle, None, "den"))

    def offer(self) -> str:
        return self.revisions.offer(self.stop)

    def follow(self) -> None:
        """Let a worker of the workspace live that follows revisions."""
        follower = worker("w1", workspace="den", bundle_ref="sha256:0")
        AgentRegistry(self.redis, Keys()).publish_worker(follower, 60)

    def edit(self, text: str) -> None:
        write(self.folder, {"prompts/coder.md": text})

    def refs(self) -> tuple[str, str | None]:
        """Return the active ref and the proposed one."""
        state = self.record.state()
        assert state is not None
        return state.active, state.proposed.new_ref if state.proposed else None


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def dev(tmp_path: Path, redis: fakeredis.FakeRedis) -> Dev:
    return Dev(tmp_path, redis)


@pytest.fixture
def committed(tmp_path: Path, redis: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> Dev:
    monkeypatch.setattr(folder, "COMMIT_SECONDS", 0.4)
    return Dev(tmp_path, redis, ALLOWED)


def test_workers_begin_with_folder_whatever_was_active_before(dev: Dev) -> None:
    dev.record.begin("sha256:1")
    dev.record.propose(CHANGE.model_copy(update={"new_ref": "sha256:2"}))

    ref = dev.offer()

    assert ref.startswith("sha256:")
    assert dev.refs() == (ref, None)


def test_folder_change_is_proposed_unless_undone(dev: Dev) -> None:
    first = dev.offer()
    dev.follow()
    dev.edit("new")
    second = dev.offer()
    assert dev.refs() == (first, second)

    dev.edit(FILES["prompts/coder.md"])

    assert dev.offer() == first
    assert dev.refs() == (first, None)


def test_file_that_is_being_edited_is_read_again(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    source, reads = type(dev.revisions._followed.checkouts.source), iter([True, True])
    current = source.current

    def moving(self: RevisionSource) -> BundleRef:
        if next(reads, False):
            raise BundleRevisionUnavailableError("a file is gone")
        return current(self)

    monkeypatch.setattr(source, "current", moving)

    assert dev.offer() == dev.refs()[0]


def test_old_checkouts_are_removed(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_CHECKOUTS", 2)
    for text in ("one", "two", "three"):
        dev.edit(text)
        dev.offer()

    assert len(list((dev.settings.cache_path / "revisions").iterdir())) == 2


def test_load_failure_of_workers_names_place_in_folder(dev: Dev) -> None:
    ref = dev.offer()
    with checkout_of(dev, ref) as checkout:
        reason = f"{checkout.folder}/echo.py:1: it raises"
    failure = RevisionFailure(ref=ref, code="E", reason=reason, worker="w", timestamp=CHANGE.timestamp)
    dev.record.begin(ref)
    dev.record.withdraw(failure)
    dev.record._edited(lambda state: state and state.model_copy(update={"active": "sha256:0"}))

    activation = dev.revisions.activation(ref)

    assert (activation.status, activation.reason) == (
        "failed",
        f"{dev.folder.resolve()}/echo.py:1: it raises",
    )


def test_folder_that_is_too_large_is_not_copied(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_BYTES", 10)

    with pytest.raises(BundleRevisionUnavailableError, match="has more than 0 MB"):
        FolderRevisions.of(dev.folder, dev.checked(), dev.settings, dev.redis)


@pytest.mark.parametrize("name", ["state_root", "cache_dir"])
def test_folder_in_which_workers_write_is_not_copied(dev: Dev, name: str) -> None:
    settings = dev.settings.model_copy(update={name: dev.folder / "kept"})

    with pytest.raises(BundleRevisionUnavailableError, match=f"contains GOONDAN_{name.upper()}"):
        FolderRevisions.of(dev.folder, dev.checked(), settings, dev.redis)


def test_workers_keep_their_workspace_and_policy(dev: Dev) -> None:
    checked = dev.checked()
    moved = replace(checked, agents=[checked.agents[0].model_copy(update={"workspace": "lair"})])
    write(dev.folder, {"goondan.yaml": FILES["goondan.yaml"] + ALLOWED})

    assert dev.revisions.accepts(checked, dev.settings)
    assert not dev.revisions.accepts(moved, dev.settings)
    assert not dev.revisions.accepts(dev.checked(), dev.settings)


def test_commit_that_its_maker_proposes_is_waited_for(
    committed: Dev, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "COMMIT_SECONDS", 60)
    committed.offer()
    committed.follow()
    ref = f"git:{committed.bundle.commit({'prompts/coder.md': 'new'})}"
    change = CHANGE.model_copy(update={"new_ref": ref, "changeset_id": "cs-1"})
    proposing = threading.Timer(0.1, committed.record.propose, [change])
    proposing.start()

    assert committed.offer() == ref
    proposing.join()

    state = committed.record.state()
    assert state is not None
    assert state.proposed is not None
    assert state.proposed.changeset_id == "cs-1"


def test_commit_that_nobody_proposes_and_edit_are_proposed(committed: Dev) -> None:
    first = committed.offer()
    assert first == f"git:{committed.bundle.head}"
    committed.follow()

    committed.bundle.commit({"prompts/coder.md": "new"})
    assert committed.offer() == committed.refs()[1] == f"git:{committed.bundle.head}"

    committed.edit("by hand")
    assert committed.offer() == committed.refs()[1] != first
    assert str(committed.refs()[1]).startswith("sha256:")


def checkout_of(dev: Dev, ref: str) -> Checkout:
    return dev.revisions._followed.checkouts.open(BundleRef.parse(ref))


def test_other_packages_count_when_their_installation_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.setattr(sys, "path", [str(place)])
    now = 0.0
    packages = folder.InstalledPackages(lambda: now)
    (place / "one-1.0.dist-info").mkdir()
    assert not packages.have_changed()
    now = 1.9
    (place / "two-1.0.dist-info").mkdir()
    assert not packages.have_changed()
    now = 3.8
    assert not packages.have_changed()

    now = 4.0
    assert [packages.have_changed(), packages.have_changed()] == [True, False]


def test_lines_stand_behind_names_of_their_processes(capsys: pytest.CaptureFixture[str]) -> None:
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


SETTINGS = Settings.load(redis_url="redis://:p@127.0.0.1:1/0", state_root=Path("/state"))


def test_text_to_paste_is_quoted_for_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mode = {"dev": "on"}
    DevScreen().places(
        SETTINGS, {"Flower": None}, Path("/my bundle"), "@me/desk", mode=mode, is_own_redis=True
    )

    shown = capsys.readouterr().err
    assert (
        "export GOONDAN_REDIS_URL=redis://:p@127.0.0.1:1/0 GOONDAN_BUNDLE='/my bundle' GOONDAN_DEV=on\n"
        in shown
    )
    assert "Flower" not in shown
    assert "not a private one" not in shown
    assert "Files:   /state/workspaces/%40me%2Fdesk/instances (workspace @me/desk)\n" in shown


def test_workspace_that_settings_name_is_pasted_too(capsys: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS.model_copy(update={"workspace": "default"})

    DevScreen().places(
        settings, {"HTTP": "http://127.0.0.1:8765"}, Path("/bundle"), "default", mode={}, is_own_redis=True
    )

    shown = capsys.readouterr().err
    assert "GOONDAN_BUNDLE=/bundle GOONDAN_WORKSPACE=default\n" in shown
    assert "HTTP:    http://127.0.0.1:8765\n" in shown


def test_console_has_url_only_where_server_opens_it() -> None:
    url = "http://127.0.0.1:8765"
    elsewhere = SETTINGS.model_copy(update={"http_host": "0.0.0.0"})
    with_token = elsewhere.model_copy(update={"http_token": "t" * 40})

    shown = [_console_url(settings, url) for settings in (SETTINGS, elsewhere, with_token)]

    assert shown == [f"{url}/console", None, f"{url}/console"]
    assert _console_url(SETTINGS, None) is None


def test_named_redis_is_distinguished_from_private_one(capsys: pytest.CaptureFixture[str]) -> None:
    DevScreen().places(SETTINGS, {}, Path("/bundle"), "desk", mode={}, is_own_redis=False)

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
        ("/b/.env", True),
        ("/b/.env/lib/x.py", False),
        ("/b/state/workspaces/w/instances/i/workspace/.env", False),
        ("/b/prompts/coder.md", True),
        ("/b/notes.txt~", False),
        ("/b/dev.log", False),
        ("/b/.changesets/cs-1/tools/plan.py", False),
        ("/b/tools/__pycache__/plan.cpython-311.pyc", False),
        ("/b/.git/config.yaml", False),
        ("/b/.venv/lib/x.py", False),
        ("/b/state/workspaces/w/instances/i/workspace/made.py", False),
    ],
)
def test_content_and_variables_matter_not_tool_files(path: str, matters: bool) -> None:
    assert files_that_matter(Path("/b/state"))(Change.modified, path) is matters


@pytest.mark.parametrize("name", ["", "goondan.yaml"])
def test_change_is_noticed_in_directory_and_beside_file(
    name: str, tmp_path: Path, stop: threading.Event
) -> None:
    (tmp_path / "goondan.yaml").touch()
    looks = changes_of(tmp_path / name, tmp_path / "state", stop, print)
    contents = map(str, itertools.count())

    def is_noticed() -> bool:
        (tmp_path / "goondan.yaml").write_text(next(contents), encoding="utf-8")
        return tmp_path / "goondan.yaml" in next(looks)

    wait_until(is_noticed)


@pytest.mark.parametrize(
    "error", [OSError("OS file watch limit reached"), RuntimeError("too many open files")]
)
def test_unwatchable_folder_is_polled_with_notice(
    error: Exception, tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, told = watchfiles.watch, list[str]()

    def without_watches(*arguments: Any, force_polling: bool = False, **options: Any) -> Any:
        if not force_polling:
            raise error
        return watch(*arguments, force_polling=True, **options)

    monkeypatch.setattr(watchfiles, "watch", without_watches)
    (tmp_path / "goondan.yaml").touch()
    looks = changes_of(tmp_path, tmp_path / "state", stop, told.append)
    contents = map(str, itertools.count())

    def is_noticed() -> bool:
        (tmp_path / "goondan.yaml").write_text(next(contents), encoding="utf-8")
        return tmp_path / "goondan.yaml" in next(looks)

    wait_until(is_noticed)
    assert told == [f"The folder is polled for changes, since the system cannot watch it: {error}"]


def test_without_change_nothing_is_noticed(tmp_path: Path, stop: threading.Event) -> None:
    looks = changes_of(tmp_path, tmp_path / "state", stop, print)

    assert not next(looks)
    stop.set()
    assert list(looks) == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Make a directory of a bundle; what its file adds to the environment goes after the test."""
    (tmp_path / "goondan.yaml").touch()
    yield tmp_path
    Settings.add_variables("")


@pytest.mark.parametrize("bundle", ["", "goondan.yaml"])
def test_env_file_is_read_masking_only_secrets(
    bundle: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / ".env").write_text(
        "PRINTER_API_KEY=sk-12345678\nPRINTER=inkjet-2000\nDB=postgres://me:long-word@db/x\n",
        encoding="utf-8",
    )

    names = add_variables(place / bundle)
    DevScreen().line("worker", f"{os.environ['PRINTER_API_KEY']} {os.environ['PRINTER']} {os.environ['DB']}")

    assert names == ["PRINTER_API_KEY", "PRINTER", "DB"]
    assert capsys.readouterr().err == "worker          | *** inkjet-2000 postgres://me:***@db/x\n"


def test_missing_env_file_or_env_directory_reads_nothing(place: Path) -> None:
    assert add_variables(place) == []
    (place / ".env").mkdir()
    assert add_variables(place) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"KEY=1\nKEY='sk-secret\n", "line 2 is not NAME=value"),
        (b"KEY=sk-secret\xff\n", "the file is not UTF-8"),
        (b"KEY=sk-secret\n" * 100_000, "the file is larger than 1 MiB"),
    ],
)
def test_unusable_env_file_is_reported_without_content(content: bytes, reason: str, place: Path) -> None:
    (place / ".env").write_bytes(content)

    ended = goondan("dev", str(place), "--json")

    assert (ended.exit_code, ended.document["error"]["code"]) == (3, "E_CONFIG_SCHEMA_INVALID")
    assert ended.document["error"]["message"] == f"{place}/.env: {reason}."
    assert "sk-secret" not in ended.stdout + ended.stderr


def test_broken_env_link_is_reported(place: Path) -> None:
    (place / ".env").symlink_to("gone")

    assert "no such file" in goondan("dev", str(place)).stderr


def test_other_commands_do_not_read_env_file(
    client: FakeClient, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / ".env").write_text("GOONDAN_NAMESPACE=other\n", encoding="utf-8")
    monkeypatch.chdir(place)

    goondan("agents")

    assert client.settings is not None and client.settings.namespace == "goondan"
