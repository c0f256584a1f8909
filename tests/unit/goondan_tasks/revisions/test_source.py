"""Which revision a bundle is, in git and outside of it."""

import os
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions import checkouts
from goondan_tasks.revisions.checkouts import RevisionSource, content_ref
from goondan_tasks.revisions.git import GitError
from tests.git_bundle import FILES, git, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write


@pytest.mark.parametrize("prefix", ["", "bundles/notes/"])
def test_committed_bundle_is_its_commit(tmp_path: Path, prefix: str) -> None:
    bundle = make_bundle(tmp_path, prefix=prefix)

    assert str(RevisionSource.of(bundle.folder).current()) == f"git:{bundle.head}"


def test_bundle_of_one_file_is_its_commit_too(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)

    assert str(RevisionSource.of(bundle.folder / "goondan.yaml").current()) == f"git:{bundle.head}"


def test_changes_elsewhere_in_repository_do_not_count(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, prefix="notes/")
    (bundle.root / "elsewhere.txt").write_text("new", encoding="utf-8")

    assert RevisionSource.of(bundle.folder).current().scheme == "git"


@pytest.mark.parametrize("name", ["prompts/coder.md", "prompts/new.md"])
def test_bundle_with_uncommitted_changes_is_its_content(tmp_path: Path, name: str) -> None:
    bundle = make_bundle(tmp_path)
    (bundle.folder / name).write_text("another", encoding="utf-8")

    assert RevisionSource.of(bundle.folder).current() == content_ref(bundle.folder)


@pytest.mark.parametrize("has_commit", [True, False])
def test_bundle_that_is_not_committed_is_its_content(tmp_path: Path, has_commit: bool) -> None:
    folder = write(tmp_path / "new", FILES)
    git(tmp_path, "init", "--quiet")
    if has_commit:
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "Begin")

    assert RevisionSource.of(folder).current().scheme == "sha256"


def test_equal_content_has_equal_refs_in_any_place(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", FILES), write(tmp_path / "b", FILES)
    os.utime(second / "goondan.yaml", (1, 1))
    (second / "__pycache__").mkdir()
    (second / "__pycache__/echo.pyc").write_bytes(b"x")
    (second / ".env").write_text("API_KEY=secret", encoding="utf-8")
    (second / "dev.log").write_text("Ready.", encoding="utf-8")

    assert content_ref(first) == content_ref(second)


@pytest.mark.parametrize("change", ["text", "name", "mode", "link", "new"])
def test_every_difference_of_files_makes_another_ref(tmp_path: Path, change: str) -> None:
    folder = write(tmp_path / "a", FILES)
    before, prompt = content_ref(folder), folder / "prompts/coder.md"
    if change == "text":
        prompt.write_text("other", encoding="utf-8")
    elif change == "name":
        prompt.rename(folder / "prompts/other.md")
    elif change == "mode":
        prompt.chmod(0o755)
    elif change == "link":
        (folder / "link").symlink_to("prompts/coder.md")
    else:
        (folder / "empty").touch()

    assert content_ref(folder) != before


def test_folder_full_of_other_things_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkouts, "MAX_FILES", 2)

    with pytest.raises(BundleRevisionUnavailableError, match="more than 2 files"):
        content_ref(write(tmp_path, FILES))


def test_missing_git_command_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(GitError, match="no git command"):
        RevisionSource.of(bundle.folder)


def test_bundle_outside_of_git_needs_no_git_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, FILES)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    assert RevisionSource.of(folder).current().scheme == "sha256"
