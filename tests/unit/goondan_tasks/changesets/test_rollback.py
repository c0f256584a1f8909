"""Going back to an earlier revision."""

from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.revisions.git import GitError
from tests.git_bundle import FILES, make_bundle


@pytest.mark.parametrize("form", ["git:{}", "{}", "HEAD~1"])
def test_rollback_is_new_commit_with_files_of_then(tmp_path: Path, form: str) -> None:
    bundle = make_bundle(tmp_path, prefix="notes/")
    old = bundle.head
    (bundle.root / "elsewhere.txt").write_text("stays", encoding="utf-8")
    new = bundle.commit({"prompts/coder.md": "new\n", "prompts/more.md": "more\n"})

    result = bundle.changesets().roll_back(form.format(old))

    assert (result.base_ref, result.new_ref) == (f"git:{new}", f"git:{bundle.head}")
    assert result.summary.files_changed == ("prompts/coder.md",)
    assert result.summary.files_deleted == ("prompts/more.md",)
    assert bundle.git("rev-parse", "HEAD~1") == new
    assert bundle.git("log", "-1", "--format=%s") == f"Roll back to git:{old}"
    assert (bundle.folder / "prompts/coder.md").read_text("utf-8") == FILES["prompts/coder.md"]
    assert (bundle.root / "elsewhere.txt").read_text("utf-8") == "stays"
    assert bundle.git("status", "--porcelain") == ""


def test_rollback_to_how_it_is_commits_nothing(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)

    result = bundle.changesets().roll_back("HEAD")

    assert result.new_ref == result.base_ref == f"git:{bundle.head}"
    assert bundle.git("rev-list", "--count", "HEAD") == "1"


@pytest.mark.parametrize(
    "ref", ["", "git:", "git:" + "a" * 40, "sha256:" + "a" * 64, "--all", "HEAD~5", "x\ny"]
)
def test_revision_that_is_none_is_refused(tmp_path: Path, ref: str) -> None:
    with pytest.raises(ChangesetError, match="no revision"):
        make_bundle(tmp_path).changesets().roll_back(ref)


def test_revision_that_is_not_valid_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, files={"goondan.yaml": "kind: Nothing\n"})
    broken = bundle.head
    corrected = bundle.commit(FILES)

    with pytest.raises(ChangesetError, match=r"has \d+ error") as raised:
        bundle.changesets().roll_back(f"git:{broken}")
    assert (raised.value.code, bundle.head) == ("BUNDLE_INVALID", corrected)


def test_rollback_does_not_overwrite_person_s_uncommitted_changes(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    head = bundle.commit({"prompts/coder.md": "new\n"})
    (bundle.folder / "prompts/coder.md").write_text("mine\n", encoding="utf-8")

    with pytest.raises(GitError, match="cannot follow"):
        bundle.changesets().roll_back("HEAD~1")
    assert bundle.head == head
