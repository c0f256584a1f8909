"""Revisions by name."""

from pathlib import Path

import pytest

from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.checkouts import RevisionSource
from goondan_tasks.revisions.git import GitError
from tests.git_bundle import GitBundle, git, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write


def test_without_name_it_is_branch_s_last_commit(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    write(bundle.folder, {"prompts/coder.md": "not committed\n"})

    assert str(RevisionSource.of(bundle.folder).named(None)) == f"git:{bundle.head}"


@pytest.mark.parametrize("name", ["HEAD~1", "git:{old}", "{old}"])
def test_any_name_of_commit_will_do(tmp_path: Path, name: str) -> None:
    bundle = make_bundle(tmp_path / "repo")
    old = bundle.head
    bundle.commit({"prompts/coder.md": "new\n"})

    assert str(RevisionSource.of(bundle.folder).named(name.format(old=old))) == f"git:{old}"


@pytest.mark.parametrize("name", ["git:nothing", "", "--all", "HEAD~7", f"sha256:{'0' * 64}"])
def test_unknown_revision_name_is_refused(tmp_path: Path, name: str) -> None:
    bundle = make_bundle(tmp_path / "repo")

    with pytest.raises(BundleRevisionUnavailableError, match="There is no revision"):
        RevisionSource.of(bundle.folder).named(name)


def test_revision_outside_git_is_current_folder(tmp_path: Path) -> None:
    source = RevisionSource.of(write(tmp_path, {}))

    assert source.named(None) == source.current() == source.named(str(source.current()))


def test_revision_missing_from_remote_is_refused(tmp_path: Path) -> None:
    make_bundle(tmp_path / "first")
    git(tmp_path, "clone", "--quiet", "--bare", "first", "remote.git")
    git(tmp_path, "clone", "--quiet", "remote.git", "here")
    here = GitBundle(tmp_path / "here")
    pushed = here.head
    here.commit({"prompts/coder.md": "mine\n"})
    source = RevisionSource.of(here.folder, "origin")

    assert str(source.named("HEAD~1")) == f"git:{pushed}"
    with pytest.raises(GitError, match="does not have"):
        source.named(None)
