"""Two machines: clones of their own; the workdirs and the remote are shared."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.policy import Principal
from goondan_tasks.revisions.checkouts import BundleRef, Checkouts, RevisionSource
from goondan_tasks.revisions.git import GitError
from tests.git_bundle import GitBundle, git, make_bundle, open_changeset


@dataclass(frozen=True, slots=True)
class Machines:
    """Two clones, and the bare repository between them."""

    here: GitBundle
    there: GitBundle
    remote: GitBundle

    def changesets(self) -> tuple[Changesets, Changesets]:
        """Return the changesets as both see them."""
        return self.here.changesets("origin"), self.there.changesets("origin")


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    """Make two machines with one bundle."""
    first = make_bundle(tmp_path / "first")
    git(tmp_path, "clone", "--quiet", "--bare", str(first.root), "remote.git")
    for name in ("here", "there"):
        git(tmp_path, "clone", "--quiet", str(tmp_path / "remote.git"), name)
    here, there, remote = (GitBundle(tmp_path / name) for name in ("here", "there", "remote.git"))
    return Machines(here, there, remote)


def test_changeset_opened_on_one_machine_commits_on_another(machines: Machines, tmp_path: Path) -> None:
    here, there = machines.changesets()
    changeset = open_changeset(here, tmp_path / "work", agent="coder")
    changeset.write({"prompts/coder.md": "new\n"})

    [seen] = there.all()
    result = there.commit(changeset.changeset_id)

    assert (seen.changeset_id, seen.agent_name) == (changeset.changeset_id, "coder")
    assert result.new_ref == f"git:{machines.remote.head}" == f"git:{machines.there.head}"
    assert here.all() == there.all() == []
    assert machines.remote.git("for-each-ref", "refs/goondan") == ""


def test_workdirs_may_be_mounted_at_another_place(machines: Machines, tmp_path: Path) -> None:
    here, there = machines.changesets()
    opened = here.open(Principal(tmp_path / "work", agent="coder", instance_key="a"))
    Path(opened.workdir, "prompts/coder.md").write_text("new\n", encoding="utf-8")
    shutil.move(tmp_path / "work", tmp_path / "mounted")

    principal = Principal(tmp_path / "mounted", agent="coder", instance_key="a")
    assert there.commit(opened.changeset_id, principal=principal).status == "ok"


def test_other_machines_commit_is_merged_and_runs_here(machines: Machines, tmp_path: Path) -> None:
    here, there = machines.changesets()
    changeset = open_changeset(here, tmp_path / "work")
    changeset.write({"prompts/mine.md": "mine\n"})
    other = open_changeset(there, tmp_path / "work")
    other.write({"prompts/coder.md": "theirs\n"})
    theirs = there.commit(other.changeset_id)
    mine = here.commit(changeset.changeset_id)

    assert (theirs.status, mine.status) == ("ok", "ok")
    assert (machines.here.folder / "prompts/coder.md").read_text("utf-8") == "theirs\n"
    assert machines.here.head == machines.remote.head != machines.there.head
    source = RevisionSource.of(machines.there.folder, "origin")
    with Checkouts(tmp_path / "cache", source).open(BundleRef.parse(str(mine.new_ref))) as checkout:
        assert (checkout.path / "prompts/mine.md").read_text("utf-8") == "mine\n"


def test_conflict_with_other_machine_is_decided_on_any(machines: Machines, tmp_path: Path) -> None:
    here, there = machines.changesets()
    changeset, other = open_changeset(here, tmp_path / "work"), open_changeset(there, tmp_path / "work")
    changeset.write({"prompts/coder.md": "mine\n"})
    other.write({"prompts/coder.md": "theirs\n"})
    there.commit(other.changeset_id)

    assert here.commit(changeset.changeset_id).status == "conflict"
    changeset.write({"prompts/coder.md": "both\n"})
    assert there.commit(changeset.changeset_id).status == "ok"
    assert machines.remote.committed("prompts/coder.md") == "both"


def test_commit_overtaken_by_push_is_merged_and_repushed(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = machines.changesets()
    changeset = open_changeset(here, tmp_path / "work")
    changeset.write({"prompts/mine.md": "mine\n"})
    repository = here.repository
    commit, pushes = type(repository).commit, [1]

    def after_a_push(*arguments: object) -> str:
        if pushes:
            pushes.pop()
            machines.there.commit({"prompts/coder.md": "theirs\n"})
            machines.there.git("push", "--quiet", "origin", "main")
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(repository), "commit", after_a_push)

    assert here.commit(changeset.changeset_id).status == "ok"
    assert machines.remote.committed("prompts/coder.md") == "theirs"
    assert machines.remote.committed("prompts/mine.md") == "mine"


def test_unreachable_or_refusing_remote_is_reported_keeping_work(machines: Machines, tmp_path: Path) -> None:
    here, _ = machines.changesets()
    changeset = open_changeset(here, tmp_path / "work")
    changeset.write({"prompts/mine.md": "mine\n"})
    head = machines.here.head
    hook = machines.remote.root / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n", encoding="utf-8")
    hook.chmod(0o755)
    refused = here.commit(changeset.changeset_id)
    machines.remote.root.rename(tmp_path / "away.git")
    unreached = here.commit(changeset.changeset_id)

    for result in (refused, unreached):
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "GIT_ERROR")
    assert refused.error is not None
    assert "pre-receive hook declined" in refused.error.message
    assert (machines.here.head, changeset.folder.is_dir()) == (head, True)
    with pytest.raises(GitError):
        here.all()


def test_branches_that_have_diverged_are_left_to_person(machines: Machines, tmp_path: Path) -> None:
    here, _ = machines.changesets()
    changeset = open_changeset(here, tmp_path / "work")
    changeset.write({"prompts/mine.md": "mine\n"})
    machines.there.commit({"prompts/coder.md": "theirs\n"})
    machines.there.git("push", "--quiet", "origin", "main")
    machines.here.commit({"prompts/coder.md": "ours\n"})

    result = here.commit(changeset.changeset_id)

    assert result.error is not None
    assert "the other way round" in result.error.message


def test_commits_that_person_did_not_push_go_along(machines: Machines, tmp_path: Path) -> None:
    here, _ = machines.changesets()
    mine = machines.here.commit({"prompts/coder.md": "ours\n"})
    changeset = open_changeset(here, tmp_path / "work")
    changeset.write({"prompts/new.md": "new\n"})

    assert here.commit(changeset.changeset_id).status == "ok"
    assert machines.remote.git("rev-parse", "main~1") == mine


def test_empty_remote_gets_branch(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "empty.git")
    changesets = bundle.changesets(str(tmp_path / "empty.git"))
    changeset = open_changeset(changesets, tmp_path / "work")
    changeset.write({"prompts/new.md": "new\n"})

    assert changesets.commit(changeset.changeset_id).status == "ok"
    assert GitBundle(tmp_path / "empty.git").head == bundle.head
