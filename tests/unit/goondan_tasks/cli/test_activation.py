"""What goondan changeset and goondan rollback tell the workers, and say of them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.cli import followers
from goondan_tasks.revisions.active import ActiveRevision, RevisionFailure
from goondan_tasks.roster import Roster, WorkerRecord
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.cli.invoke import Outcome, goondan
from tests.waiting import wait_until

SINCE = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitBundle:
    """Make a bundle and let the commands find it."""
    made = make_bundle(tmp_path / "repo")
    monkeypatch.setenv("GOONDAN_BUNDLE", str(made.folder))
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path / "state"))
    return made


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """Give the commands a Redis in memory."""
    server = fakeredis.FakeServer()
    monkeypatch.setattr(followers, "connect", lambda url, name: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        yield redis


@pytest.fixture
def active(redis: Redis, bundle: GitBundle) -> ActiveRevision:
    """Let the bundle's first revision be followed."""
    active = ActiveRevision(redis, Keys(), "default")
    active.begin(f"git:{bundle.head}")
    return active


def announce_worker(redis: Redis) -> None:
    record = WorkerRecord(
        name="w", pid=1, host="h", agents=("coder",), concurrency=1, root_id="r", started_at=SINCE
    )
    Roster(redis, Keys()).publish_worker(record, 60)


class Worker:
    """A worker that decides about the first proposal that it sees."""

    def __init__(self, redis: Redis, active: ActiveRevision, *, loads: bool) -> None:
        announce_worker(redis)
        self._active, self._loads = active, loads
        self._thread = threading.Thread(target=self._decide)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)

    def _decide(self) -> None:
        wait_until(self._proposed)
        ref = self._proposed()
        if self._loads:
            self._active.activate(ref)
        else:
            self._active.withdraw(
                RevisionFailure(ref=ref, code="E_EXT_INIT", reason="it raised", worker="w", timestamp=SINCE)
            )

    def _proposed(self) -> str:
        state = self._active.state()
        return state.proposed.new_ref if state and state.proposed else ""


def committed(*options: str) -> Outcome:
    opened = goondan("changeset", "open", "--json").document
    Path(opened["workdir"], "prompts/coder.md").write_text("more\n", encoding="utf-8")
    return goondan("changeset", "commit", opened["changesetId"], *options)


def test_a_commit_that_a_worker_loads_is_active(
    bundle: GitBundle, redis: Redis, active: ActiveRevision
) -> None:
    with Worker(redis, active, loads=True):
        outcome = committed("--json")

    ref = f"git:{bundle.head}"
    assert (outcome.exit_code, outcome.document["newRef"]) == (0, ref)
    assert outcome.document["activation"] == {"status": "active", "ref": ref}
    shown = goondan("changeset", "active", "--json").document
    assert (shown["active"], shown["change"]["changesetId"]) == (ref, outcome.document["changesetId"])


def test_one_that_no_worker_can_load_is_told_and_ends_with_3(
    bundle: GitBundle, redis: Redis, active: ActiveRevision
) -> None:
    old = f"git:{bundle.head}"
    with Worker(redis, active, loads=False):
        outcome = committed()
    shown = goondan("changeset", "active")

    assert outcome.exit_code == 3
    assert outcome.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert "E_EXT_INIT: it raised" in outcome.stderr
    assert f"active  {old}" in shown.stdout
    assert f"failed  git:{bundle.head}" in shown.stdout


def test_a_worker_that_takes_too_long_is_not_waited_for_any_more(
    redis: Redis, active: ActiveRevision
) -> None:
    announce_worker(redis)
    pass_by = committed("--no-wait", "--json")
    late = goondan("rollback", "HEAD~1", "--timeout", "0", "--json")
    asked = goondan("changeset", "activate", "--timeout", "0")

    assert (pass_by.exit_code, pass_by.document["activation"]["status"]) == (0, "proposed")
    assert (late.exit_code, late.document["activation"]["status"]) == (4, "proposed")
    assert (asked.exit_code, asked.stdout.strip()) == (4, late.document["newRef"])


def test_a_commit_by_hand_is_activated(bundle: GitBundle, redis: Redis, active: ActiveRevision) -> None:
    commit = bundle.commit({"prompts/coder.md": "by hand\n"})
    with Worker(redis, active, loads=True):
        outcome = goondan("changeset", "activate", "--json")
    with Worker(redis, active, loads=True):
        back = goondan("changeset", "activate", "HEAD~1", "--json")
    unknown = goondan("changeset", "activate", "git:nothing", "--json")

    assert outcome.document == {"status": "active", "ref": f"git:{commit}"}
    assert back.document["status"] == "active"
    assert unknown.exit_code == 1
    assert unknown.document["error"]["code"] == "E_BUNDLE_REVISION_UNAVAILABLE"


def test_where_nobody_follows_revisions_that_is_said(bundle: GitBundle, redis: Redis) -> None:
    shown = goondan("changeset", "active")
    asked = goondan("changeset", "activate")
    outcome = committed()

    assert (shown.exit_code, shown.stdout) == (0, "No worker follows the revisions of this bundle.\n")
    assert (asked.exit_code, outcome.exit_code) == (3, 0)
    assert "when they start" in asked.stderr
    assert "when they start" in outcome.stderr


def test_without_workers_nobody_is_waited_for(active: ActiveRevision) -> None:
    assert committed("--json").document["activation"]["status"] == "proposed"


def test_without_redis_the_commit_stands_and_one_is_told_what_to_do(
    bundle: GitBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://127.0.0.1:1/0")

    outcome = committed()
    as_json = goondan("rollback", "HEAD~1", "--json")
    shown = goondan("changeset", "active", "--json")

    assert (outcome.exit_code, outcome.stdout.splitlines()[1]) == (0, "M prompts/coder.md")
    assert "goondan changeset activate" in outcome.stderr
    assert as_json.exit_code == 0
    assert "cannot be reached" in as_json.document["warning"]
    assert (shown.exit_code, shown.document["error"]["code"]) == (5, "E_BROKER_UNREACHABLE")


def test_a_bundle_that_is_broken_on_disk_can_be_rolled_back(
    bundle: GitBundle, active: ActiveRevision
) -> None:
    bundle.commit({"goondan.yaml": "kind: Nothing\n"})

    outcome = goondan("rollback", "HEAD~1", "--no-wait", "--json")

    assert (outcome.exit_code, outcome.document["activation"]["status"]) == (0, "proposed")
