"""The merge of a changeset with what others have committed."""

import os
from functools import partial
from pathlib import Path

import pytest

from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.revisions.checkouts import RevisionSource
from goondan_tasks.revisions.git import Changes, Entry, GitError, Repository, changes_between
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write

LABEL = "cs-1"
TEXT = "one\ntwo\nthree\n"
BASE = {"a.md": TEXT, "b.md": TEXT, "data.bin": "a\0"}


class Sides:
    """A repository in which we and others change one base."""

    def __init__(self, place: Path) -> None:
        self.bundle: GitBundle = make_bundle(place, prefix="notes/", files=BASE)
        self.base = self.bundle.head
        repository = Repository.find(self.bundle.folder)
        assert repository is not None
        self.repository = repository

    def changed(self, **files: str | None) -> str:
        """Commit what one side makes of the base, and return the commit; ``md_a`` is the file ``a.md``."""
        self.bundle.git("checkout", "--quiet", self.base)
        for name, text in files.items():
            suffix, _, stem = name.partition("_")
            path = self.bundle.folder / (f"{stem}.{suffix}" if stem else name)
            path.unlink(missing_ok=True)
            if text is not None:
                write(self.bundle.folder, {path.name: text})
        return self.bundle.commit({})

    def tree(self, commit: str) -> str:
        """Return the tree of the bundle in a commit."""
        tree = self.repository.bundle_tree(commit)
        assert tree is not None
        return tree

    def commit_of(self, tree: str) -> str:
        """Return a commit on top of the base with a tree of the bundle."""
        root = self.repository.with_bundle(self.base, tree)
        return self.bundle.git("commit-tree", "-m", "x", "-p", self.base, root)

    def ours(self, **files: str | None) -> str:
        """Return the tree with our changes."""
        return self.tree(self.changed(**files))

    def merged(self, ours: str, theirs: str) -> tuple[dict[str, str | None], list[str]]:
        """Return the files that the merge changes in theirs, and the conflicts; ``None`` is not a file."""
        there = self.tree(theirs)
        merged, conflicts = self.repository.merge(self.tree(self.base), ours, there, label=LABEL)
        entries = self.repository.entries
        return self.texts(changes_between(entries(there), entries(merged))), sorted(conflicts)

    def texts(self, entries: Changes) -> dict[str, str | None]:
        """Return what entries hold."""
        show = partial(self.repository.git.run, "cat-file", "blob")
        return {path: show(it.blob).decode() if it else None for path, it in entries.items()}


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(tmp_path / "repo")


def test_change_of_only_one_side_is_taken(sides: Sides) -> None:
    ours, theirs = sides.ours(md_a="ours\n", md_new="new\n"), sides.changed(md_b="theirs\n")
    assert sides.merged(ours, theirs) == ({"a.md": "ours\n", "new.md": "new\n"}, [])


def test_identical_change_of_both_sides_is_not_repeated(sides: Sides) -> None:
    ours, theirs = sides.ours(md_a="same\n", md_b=None), sides.changed(md_a="same\n", md_b=None)
    assert sides.merged(ours, theirs) == ({}, [])


def test_one_file_is_merged_line_by_line(sides: Sides) -> None:
    ours, theirs = sides.ours(md_a="1\ntwo\nthree\n"), sides.changed(md_a="one\ntwo\n3\n")
    assert sides.merged(ours, theirs) == ({"a.md": "1\ntwo\n3\n"}, [])


def test_lines_changed_by_both_conflict_with_both_marked(sides: Sides) -> None:
    ours, theirs = sides.ours(md_a="one\nours\nthree\n"), sides.changed(md_a="one\ntheirs\nthree\n")
    marked = f"one\n<<<<<<< {LABEL}\nours\n=======\ntheirs\n>>>>>>> branch\nthree\n"
    assert sides.merged(ours, theirs) == ({"a.md": marked}, ["a.md"])


@pytest.mark.parametrize(
    ("ours", "theirs", "path"),
    [
        ({"md_a": None}, {"md_a": "changed\n"}, "a.md"),
        ({"md_a": "changed\n"}, {"md_a": None}, "a.md"),
        ({"bin_data": "b\0"}, {"bin_data": "c\0"}, "data.bin"),
    ],
    ids=["removed here", "removed there", "no lines"],
)
def test_deleted_or_binary_file_conflicts_with_change(
    sides: Sides, ours: dict[str, str | None], theirs: dict[str, str | None], path: str
) -> None:
    _, conflicts = sides.merged(sides.ours(**ours), sides.changed(**theirs))
    assert conflicts == [path]


@pytest.mark.parametrize("is_ours", [True, False])
def test_link_against_changed_file_conflicts_at_path(sides: Sides, is_ours: bool) -> None:
    link = Entry("120000", sides.repository.write_blob(b"b.md"))
    with_link = sides.repository.tree_with(sides.tree(sides.base), {"a.md": link})
    changed = sides.changed(md_a="changed\n")
    there = sides.commit_of(with_link)
    _, conflicts = sides.merged(*((with_link, changed) if is_ours else (sides.tree(changed), there)))
    assert {path.partition("~")[0] for path in conflicts} == {"a.md"}


def test_mode_that_one_side_changed_is_kept(sides: Sides) -> None:
    ours = sides.ours(md_a="1\ntwo\nthree\n")
    sides.bundle.git("checkout", "--quiet", sides.base)
    (sides.bundle.folder / "a.md").chmod(0o755)
    theirs = sides.bundle.commit({})
    merged, _ = sides.repository.merge(sides.tree(sides.base), ours, sides.tree(theirs), label=LABEL)
    assert sides.repository.entries(merged)["a.md"].mode == "100755"


def test_content_removed_by_reset_does_not_return(sides: Sides) -> None:
    before = sides.base
    sides.base = sides.changed(md_b="reset\n")
    ours = sides.ours(md_a="ours\n")
    assert sides.merged(ours, before) == ({"a.md": "ours\n"}, [])


def test_their_rename_is_removal_and_addition(sides: Sides) -> None:
    ours, theirs = sides.ours(md_a="1\ntwo\nthree\n"), sides.changed(md_a=None, md_moved=TEXT)
    assert sides.merged(ours, theirs)[1] == ["a.md"]


def test_our_rename_takes_their_lines_or_marks(sides: Sides) -> None:
    ours = sides.ours(md_a=None, md_moved="1\ntwo\nthree\n")
    assert sides.merged(ours, sides.changed(md_a="one\ntwo\n3\n")) == (
        {"a.md": None, "moved.md": "1\ntwo\n3\n"},
        [],
    )
    changes, conflicts = sides.merged(ours, sides.changed(md_a="I\ntwo\nthree\n"))
    marked = f"<<<<<<< {LABEL}:moved.md\n1\n=======\nI\n>>>>>>> branch:a.md\ntwo\nthree\n"
    assert (changes["moved.md"], conflicts) == (marked, ["moved.md"])


@pytest.mark.parametrize("is_ours", [True, False])
def test_file_against_directory_conflicts_at_its_path(sides: Sides, is_ours: bool) -> None:
    blob = Entry("100644", sides.repository.write_blob(b"new"))
    sides_of: tuple[Changes, Changes] = ({"x": blob}, {"x/y": blob})
    trees = [sides.repository.tree_with(sides.tree(sides.base), changes) for changes in sides_of]
    ours, theirs = trees if is_ours else reversed(trees)
    _, conflicts = sides.merged(ours, sides.commit_of(theirs))
    assert [path.partition("~")[0] for path in conflicts] == ["x"]


def test_repository_attributes_neither_run_programs_nor_prevent_merging(sides: Sides, tmp_path: Path) -> None:
    driver, ran = f"touch {tmp_path / 'ran'}", tmp_path / "ran"
    sides.bundle.git("config", "merge.bad.driver", driver)
    sides.base = sides.bundle.commit({".gitattributes": "a.md merge=bad\nb.md -merge\n"})
    ours = sides.ours(md_a="1\ntwo\nthree\n", md_b="1\ntwo\nthree\n")
    theirs = sides.changed(md_a="one\ntwo\n3\n", md_b="one\ntwo\n3\n")
    assert sides.merged(ours, theirs) == ({"a.md": "1\ntwo\n3\n", "b.md": "1\ntwo\n3\n"}, [])
    assert not ran.exists()


def test_too_old_git_names_required_version(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RevisionSource.of(sides.bundle.folder)
    old = write(tmp_path / "bin", {"git": "#!/bin/sh\necho git version 2.37.4\n"}) / "git"
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    with pytest.raises(GitError, match=r"need git 2\.38 or newer; this is git version 2\.37\.4"):
        Changesets.of(source)
