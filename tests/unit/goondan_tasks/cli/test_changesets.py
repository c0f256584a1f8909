"""goondan changeset and goondan rollback."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.cli import changesets
from goondan_tasks.cli.output import local_time
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.fleet.agent_registry import AgentRegistry, WorkerRecord
from goondan_tasks.fleet.audit import AuditLog
from goondan_tasks.revisions.active import ActiveRevision, RevisionFailure
from tests.git_bundle import FILES, GitBundle, make_bundle
from tests.unit.goondan_tasks.cli.invoke import Outcome, goondan
from tests.waiting import wait_until

SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy: { changesets: { enabled: true, allowed: { files: ["prompts/**"] } } }
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitBundle:
    """Make a bundle and let the commands find it."""
    made = make_bundle(tmp_path / "repo", files={**FILES, "goondan.yaml": FILES["goondan.yaml"] + SWARM})
    monkeypatch.setenv("GOONDAN_BUNDLE", str(made.folder))
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path / "state"))
    return made


def opened(*options: str) -> tuple[str, Path]:
    document = goondan("changeset", "open", "--json", *options).document
    return document["changesetId"], Path(document["workdir"])


def code_of(outcome: Outcome) -> str:
    code: str = outcome.document["error"]["code"]
    return code


def test_person_opens_edits_looks_and_commits(bundle: GitBundle, tmp_path: Path) -> None:
    shown = goondan("changeset", "open", "-m", "Say more")
    changeset_id, place = shown.stdout.split()
    assert Path(place) == tmp_path / "state/changesets" / changeset_id
    Path(place, "prompts/coder.md").write_text("more\n", encoding="utf-8")

    listed = goondan("changeset", "list", "--json").document
    diff = goondan("changeset", "diff", changeset_id)
    committed = goondan("changeset", "commit", changeset_id, "--message", "Say more")
    logged = goondan("changeset", "log", "--json", "--limit", "1").document

    assert [(item["changesetId"], item["reason"]) for item in listed] == [(changeset_id, "Say more")]
    assert "+more" in diff.stdout
    assert committed.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert [(item["ref"], item["changesetId"]) for item in logged] == [(f"git:{bundle.head}", changeset_id)]


def test_agents_policy_applies_if_agent_is_named(bundle: GitBundle) -> None:
    changeset_id, workdir = opened("--agent", "coder")
    (workdir / "new.txt").write_text("x", encoding="utf-8")

    refused = goondan("changeset", "commit", changeset_id, "--agent", "coder")
    as_a_person = goondan("changeset", "commit", changeset_id)

    assert refused.exit_code == 1
    assert "POLICY_VIOLATION" in refused.stderr
    more = "goondan explain POLICY_VIOLATION, or https://docs.goondan.ai/errors/POLICY_VIOLATION"
    assert refused.stderr.endswith(f"\nMore: {more}\n")
    assert "new.txt" in refused.stderr
    assert as_a_person.exit_code == 0


def test_exit_code_shows_outcome_of_changeset(bundle: GitBundle) -> None:
    changeset_id, workdir = opened()
    (workdir / "goondan.yaml").write_text("kind: Nothing\n", encoding="utf-8")

    broken = goondan("changeset", "commit", changeset_id, "--json")
    unknown = goondan("changeset", "commit", "cs-1-00000000", "--json")
    undiffed = goondan("changeset", "diff", "cs-1-00000000", "--json")
    agentless = goondan("changeset", "open", "--agent", "nobody", "--json")

    assert (broken.exit_code, broken.document["status"], code_of(broken)) == (3, "rejected", "BUNDLE_INVALID")
    assert (unknown.exit_code, code_of(unknown)) == (2, "CHANGESET_NOT_FOUND")
    assert (undiffed.exit_code, code_of(undiffed)) == (2, "CHANGESET_NOT_FOUND")
    assert broken.document["error"]["helpUrl"] == "https://docs.goondan.ai/errors/BUNDLE_INVALID"
    assert undiffed.document["error"]["helpUrl"] == "https://docs.goondan.ai/errors/CHANGESET_NOT_FOUND"
    assert (agentless.exit_code, code_of(agentless)) == (3, "E_AGENT_NOT_FOUND")


def test_changeset_is_discarded_only_when_confirmed(bundle: GitBundle) -> None:
    changeset_id, workdir = opened()

    asked = goondan("changeset", "discard", changeset_id)
    told = goondan("changeset", "discard", changeset_id, "--yes", "--json")

    assert asked.exit_code == 2
    assert told.document == {"discarded": changeset_id}
    assert not workdir.exists()


@pytest.mark.parametrize("arguments", [["commit"], ["diff"], ["list", "cs-1-00000000"], ["open", "x"]])
def test_ids_stand_where_they_belong(bundle: GitBundle, arguments: list[str]) -> None:
    assert goondan("changeset", *arguments).exit_code == 2


def test_changeset_command_without_git_suggests_git_init(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text(FILES["goondan.yaml"], encoding="utf-8")

    outcome = goondan("changeset", "list", "--bundle", str(tmp_path), "--json")

    assert (outcome.exit_code, code_of(outcome)) == (1, "GIT_ERROR")
    assert "git init" in outcome.document["error"]["suggestion"]


def test_narrow_log_shows_ref_prefix_that_rollback_takes(
    bundle: GitBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.commit({"prompts/coder.md": "worse\n"})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    heading, _, first = goondan("changeset", "log").stdout.splitlines()
    ref = first.split()[-1]

    assert "changeset" not in heading
    assert len(ref) == 16
    assert goondan("rollback", ref).exit_code == 0


def test_earlier_revision_is_brought_back(bundle: GitBundle) -> None:
    old = bundle.head
    bundle.commit({"prompts/coder.md": "worse\n"})

    rolled_back = goondan("rollback", f"git:{old}")
    unknown = goondan("rollback", "git:nothing", "--json")

    assert rolled_back.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert bundle.committed("prompts/coder.md") == FILES["prompts/coder.md"].strip()
    assert (unknown.exit_code, code_of(unknown)) == (1, "GIT_ERROR")


def test_first_digits_of_revision_suffice_if_unambiguous(bundle: GitBundle) -> None:
    old = bundle.head
    bundle.commit({"prompts/coder.md": "worse\n"})

    too_short = goondan("rollback", f"git:{old[:3]}")
    rolled_back = goondan("rollback", f"git:{old[:12]}")
    again = goondan("rollback", old)

    assert (too_short.exit_code, "There is no revision" in too_short.stderr) == (1, True)
    assert rolled_back.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert "Nothing has changed" in again.stderr


def test_commit_of_empty_changeset_reports_no_change(bundle: GitBundle) -> None:
    shown = goondan("changeset", "open")
    changeset_id = shown.stdout.split()[0]

    committed = goondan("changeset", "commit", changeset_id)

    assert f"goondan changeset diff|commit|discard {changeset_id}" in shown.stderr
    assert (committed.exit_code, committed.stdout) == (0, f"git:{bundle.head}\n")
    assert "Nothing has changed" in committed.stderr


def test_log_has_time_of_clock_on_wall(bundle: GitBundle) -> None:
    [commit] = goondan("changeset", "log", "--json", "--limit", "1").document
    [_, row] = goondan("changeset", "log", "--limit", "1").stdout.splitlines()

    assert row.startswith(local_time(epoch_milliseconds(commit["committedAt"])))


SINCE = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitBundle:
    """Make a repository and let the commands find it."""
    made = make_bundle(tmp_path / "repo")
    monkeypatch.setenv("GOONDAN_BUNDLE", str(made.folder))
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path / "state"))
    return made


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """Give the commands a Redis in memory."""
    server = fakeredis.FakeServer()
    monkeypatch.setattr(changesets, "connect", lambda url, name: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        yield redis


@pytest.fixture
def active(redis: Redis, repository: GitBundle) -> ActiveRevision:
    """Let the bundle's first revision be followed."""
    active = ActiveRevision(redis, Keys(), folder_workspace(repository.folder))
    active.begin(f"git:{repository.head}")
    return active


def announce_worker(
    redis: Redis, name: str = "w", ref: str | None = None, workspace: str = "default"
) -> None:
    record = WorkerRecord(
        name=name,
        pid=1,
        host="h",
        agents=("coder",),
        concurrency=1,
        root_id="r",
        started_at=SINCE,
        bundle_ref=ref,
        workspace=workspace,
    )
    AgentRegistry(redis, Keys()).publish_worker(record, 60)


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
        wait_until(lambda: proposed_in(self._active))
        ref = proposed_in(self._active)
        if self._loads:
            self._active.activate(ref)
        else:
            self._active.withdraw(
                RevisionFailure(ref=ref, code="E_EXT_INIT", reason="it raised", worker="w", timestamp=SINCE)
            )


def committed(*options: str) -> Outcome:
    opened = goondan("changeset", "open", "--json").document
    Path(opened["workdir"], "prompts/coder.md").write_text("more\n", encoding="utf-8")
    return goondan("changeset", "commit", opened["changesetId"], *options)


def test_commit_that_worker_loads_is_active(
    repository: GitBundle, redis: Redis, active: ActiveRevision
) -> None:
    with Worker(redis, active, loads=True):
        outcome = committed("--json")

    ref = f"git:{repository.head}"
    assert (outcome.exit_code, outcome.document["newRef"]) == (0, ref)
    assert outcome.document["activation"] == {"status": "active", "ref": ref}
    shown = goondan("changeset", "active", "--json").document
    assert (shown["active"], shown["change"]["changesetId"]) == (ref, outcome.document["changesetId"])


def test_unloadable_revision_is_reported_and_exits_with_3(
    repository: GitBundle, redis: Redis, active: ActiveRevision
) -> None:
    old = f"git:{repository.head}"
    with Worker(redis, active, loads=False):
        outcome = committed()
    shown = goondan("changeset", "active")

    assert outcome.exit_code == 3
    assert outcome.stdout.splitlines() == [f"git:{repository.head}", "M prompts/coder.md"]
    assert "E_EXT_INIT: it raised" in outcome.stderr
    assert f"active  {old}" in shown.stdout
    assert f"failed  git:{repository.head}" in shown.stdout


def test_slow_worker_is_no_longer_awaited(redis: Redis, active: ActiveRevision) -> None:
    announce_worker(redis)
    pass_by = committed("--no-wait", "--json")
    late = goondan("rollback", "HEAD~1", "--timeout", "0", "--json")
    asked = goondan("changeset", "activate", "--timeout", "0")

    assert (pass_by.exit_code, pass_by.document["activation"]["status"]) == (0, "proposed")
    assert (late.exit_code, late.document["activation"]["status"]) == (4, "proposed")
    assert (asked.exit_code, asked.stdout.strip()) == (4, late.document["newRef"])


def test_rollback_waits_for_workspaces_live_workers(
    repository: GitBundle, redis: Redis, active: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, ours = f"git:{repository.head}", folder_workspace(repository.folder)
    repository.commit({"prompts/coder.md": "worse\n"})
    for name, workspace in (("fast", ours), ("slow", ours), ("elsewhere", "other")):
        announce_worker(redis, name, old, workspace)
    steps: Iterator[Callable[[], object]] = iter([
        lambda: active.activate(proposed_in(active)),
        lambda: announce_worker(redis, "fast", f"git:{repository.head}", ours),
        lambda: announce_worker(redis, "slow", f"git:{repository.head}", ours),
    ])  # fmt: skip
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: next(steps)())
    monkeypatch.setattr("goondan_tasks.revisions.active.time", clock)

    outcome = goondan("rollback", "HEAD~1", "--json")

    assert outcome.document["activation"] == {"status": "active", "ref": f"git:{repository.head}"}
    assert (outcome.exit_code, list(steps)) == (0, [])
    [entry] = AuditLog(redis, Keys()).find(9)
    assert (entry.act, entry.target) == ("roll_back", f"git:{repository.head}")


def test_worker_that_stays_behind_is_named(
    repository: GitBundle, redis: Redis, active: ActiveRevision
) -> None:
    announce_worker(redis, "stuck", f"git:{repository.head}", folder_workspace(repository.folder))
    commit = repository.commit({"prompts/coder.md": "by hand\n"})
    with Worker(redis, active, loads=True):
        late = goondan("changeset", "activate", "--timeout", "1", "--json")
    told = goondan("changeset", "activate", "--timeout", "0")
    not_waited_for = goondan("changeset", "activate", "--no-wait", "--json")

    expected = {"status": "active", "ref": f"git:{commit}", "behind": ["stuck"]}
    assert (late.exit_code, late.document) == (4, expected)
    assert told.stderr.startswith("Active, but stuck still runs another revision; `goondan doctor`")
    assert (not_waited_for.exit_code, not_waited_for.document) == (0, expected)


def proposed_in(active: ActiveRevision) -> str:
    state = active.state()
    return state.proposed.new_ref if state and state.proposed else ""


def test_commit_by_hand_is_activated(repository: GitBundle, redis: Redis, active: ActiveRevision) -> None:
    commit = repository.commit({"prompts/coder.md": "by hand\n"})
    with Worker(redis, active, loads=True):
        outcome = goondan("changeset", "activate", "--json")
    with Worker(redis, active, loads=True):
        back = goondan("changeset", "activate", "HEAD~1", "--json")
    unknown = goondan("changeset", "activate", "git:nothing", "--json")
    acts = [(one.act, one.door, one.target) for one in AuditLog(redis, Keys()).find(9)]

    assert acts == [
        ("activate_revision", "cli", back.document["ref"]),
        ("activate_revision", "cli", f"git:{commit}"),
    ]
    assert outcome.document == {"status": "active", "ref": f"git:{commit}"}
    assert back.document["status"] == "active"
    assert unknown.exit_code == 1
    assert unknown.document["error"]["code"] == "E_BUNDLE_REVISION_UNAVAILABLE"


def test_workspace_without_followed_revisions_is_reported(repository: GitBundle, redis: Redis) -> None:
    shown = goondan("changeset", "active")
    asked = goondan("changeset", "activate")
    outcome = committed()

    assert (shown.exit_code, shown.stdout) == (
        0,
        "No worker follows the revisions of this bundle.\n",
    )
    assert (asked.exit_code, outcome.exit_code) == (3, 0)
    assert "when they start" in asked.stderr
    assert "when they start" in outcome.stderr
    assert [one.act for one in AuditLog(redis, Keys()).find(9)] == ["commit_changeset"]


def test_activation_without_workers_does_not_wait(active: ActiveRevision) -> None:
    assert committed("--json").document["activation"]["status"] == "proposed"


def test_commit_without_redis_stands_and_gives_advice(
    repository: GitBundle, monkeypatch: pytest.MonkeyPatch
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


def test_bundle_broken_on_disk_rolls_back(repository: GitBundle, active: ActiveRevision) -> None:
    repository.commit({"goondan.yaml": "kind: Nothing\n"})

    outcome = goondan("rollback", "HEAD~1", "--no-wait", "--json")

    assert (outcome.exit_code, outcome.document["activation"]["status"]) == (0, "proposed")
