"""Two changesets at once."""

from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import CommitResult
from goondan_tasks.changesets import changesets as changesets_module
from goondan_tasks.revisions.git import Branch
from tests.git_bundle import FILES, GitBundle, OpenChangeset, make_bundle, open_changeset
from tests.processes import process_pool


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle deep in its repository."""
    return make_bundle(
        tmp_path / "repo",
        prefix="notes/",
        files={**FILES, "data/a.bin": "a\0", "x.txt": "x\n", ".gitignore": "*.theirs\n"},
    )


@pytest.fixture
def pair(bundle: GitBundle, tmp_path: Path) -> tuple[OpenChangeset, OpenChangeset]:
    """Open two changesets of one base."""
    first, second = (open_changeset(bundle.changesets(), tmp_path / name) for name in ("one", "two"))
    return first, second


def commit(changeset: OpenChangeset) -> CommitResult:
    return changeset.changesets.commit(changeset.changeset_id)


def conflicts(result: CommitResult) -> tuple[str, ...] | None:
    assert result.error is not None
    assert (result.status, result.error.code) == ("conflict", "MERGE_CONFLICT")
    return result.error.conflicting_files


def test_changes_of_different_files_and_lines_both_commit(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset]
) -> None:
    first, second = pair
    first.write({"prompts/coder.md": "1\ntwo\nthree\n", "prompts/first.md": "1\n"})
    second.write({"prompts/coder.md": "one\ntwo\n3\n", "prompts/second.md": "2\n"})

    assert [commit(first).status, commit(second).status] == ["ok", "ok"]
    assert bundle.committed("prompts/coder.md") == "1\ntwo\n3"
    assert {"notes/prompts/first.md", "notes/prompts/second.md"} <= bundle.tracked()


def test_second_commit_learns_conflict_and_succeeds_after_merge(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset]
) -> None:
    first, second = pair
    first.write({"prompts/coder.md": "one\nfirst\nthree\n", "prompts/new.md": "new\n"})
    (first.folder / "x.txt").unlink()
    second.write({"prompts/coder.md": "one\nsecond\nthree\n"})
    commit(first)
    after_first = bundle.head

    assert conflicts(commit(second)) == ("prompts/coder.md",)
    assert bundle.head == after_first
    prompt = second.folder / "prompts/coder.md"
    marked = prompt.read_text("utf-8")
    assert marked == (f"one\n<<<<<<< {second.changeset_id}\nsecond\n=======\nfirst\n>>>>>>> branch\nthree\n")
    assert (second.folder / "prompts/new.md").read_text("utf-8") == "new\n"
    assert not (second.folder / "x.txt").exists()
    # still undecided
    assert conflicts(commit(second)) == ("prompts/coder.md",)
    assert prompt.read_text("utf-8") == marked

    prompt.write_text("one\nfirst and second\nthree\n", encoding="utf-8")
    result = commit(second)

    assert (result.status, result.base_ref) == ("ok", f"git:{after_first}")
    assert result.summary is not None
    assert result.summary.files_changed == ("prompts/coder.md",)
    assert bundle.committed("prompts/coder.md") == "one\nfirst and second\nthree"
    assert "notes/x.txt" not in bundle.tracked()


@pytest.mark.parametrize("ours_is_removed", [True, False])
def test_lineless_conflict_is_decided_by_keeping_one_file(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset], ours_is_removed: bool
) -> None:
    first, second = pair
    (first if not ours_is_removed else second).folder.joinpath("x.txt").unlink()
    (second if not ours_is_removed else first).write({"x.txt": "changed\n", "data/a.bin": "b\0"})
    (first if not ours_is_removed else second).write({"data/a.bin": "c\0"})
    commit(first)

    assert conflicts(commit(second)) == ("data/a.bin", "x.txt")
    assert conflicts(commit(second)) == ("data/a.bin", "x.txt")
    beside = {
        name: second.folder / f"{name}.{second.changeset_id}.theirs" for name in ("data/a.bin", "x.txt")
    }
    assert [file.read_text("utf-8") for file in beside.values()] == (
        ["b\0", "changed\n"] if ours_is_removed else ["c\0", ""]
    )
    for file in beside.values():
        file.unlink()

    assert commit(second).status == "ok"
    assert ("notes/x.txt" in bundle.tracked()) == (not ours_is_removed)
    assert bundle.committed("data/a.bin") == ("c\0" if ours_is_removed else "b\0")


def test_conflict_of_file_and_directory_is_decidable(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset]
) -> None:
    first, second = pair
    first.write({"more": "a file\n"})
    second.write({"more/file.md": "in a directory\n"})
    commit(first)

    assert conflicts(commit(second)) == ("more",)
    beside = second.folder / f"more.{second.changeset_id}.theirs"
    assert beside.read_text("utf-8") == "a file\n"
    beside.unlink()
    result = commit(second)

    assert result.summary is not None
    assert result.summary.files_deleted == ("more",)
    assert "notes/more/file.md" in bundle.tracked()


def test_same_change_twice_is_one_commit(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset]
) -> None:
    for changeset in pair:
        changeset.write({"prompts/coder.md": "new\n"})

    results = [commit(changeset) for changeset in pair]

    assert [result.new_ref for result in results] == [f"git:{bundle.head}"] * 2
    assert bundle.git("rev-list", "--count", "HEAD") == "2"


def test_changes_that_only_together_break_bundle_are_rejected(
    pair: tuple[OpenChangeset, OpenChangeset],
) -> None:
    first, second = pair
    agent = FILES["goondan.yaml"].replace('tools: ["Tool/echo"]', "tools: []")
    first.write({"extra.yaml": agent.split("---\n")[1].replace("coder", "extra")})
    second.write({"other.yaml": agent.split("---\n")[1].replace("coder", "extra")})

    assert commit(first).status == "ok"
    result = commit(second)
    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "BUNDLE_INVALID")


def _commit_in_a_process(given: tuple[Path, str]) -> str:
    folder, changeset_id = given
    return GitBundle(folder).changesets().commit(changeset_id).model_dump_json()


def test_only_one_of_two_processes_commits_same_file(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset]
) -> None:
    for number, changeset in enumerate(pair):
        changeset.write({"prompts/coder.md": f"one\n{number}\nthree\n"})
    with process_pool(2, __name__) as pool:
        given = [(bundle.folder, changeset.changeset_id) for changeset in pair]
        results = [
            CommitResult.model_validate_json(text) for text in pool.map(_commit_in_a_process, given, 1)
        ]

    assert sorted(result.status for result in results) == ["conflict", "ok"]
    [told] = [result.error for result in results if result.error]
    assert told.conflicting_files == ("prompts/coder.md",)
    assert bundle.git("rev-list", "--count", "HEAD") == "2"
    assert bundle.git("status", "--porcelain") == ""


def test_many_processes_at_once_lose_no_commit(bundle: GitBundle, tmp_path: Path) -> None:
    opened = [open_changeset(bundle.changesets(), tmp_path / "work") for _ in range(4)]
    for number, changeset in enumerate(opened):
        changeset.write({f"prompts/{number}.md": "new\n"})
    with process_pool(3, __name__) as pool:
        given = [(bundle.folder, changeset.changeset_id) for changeset in opened]
        results = [
            CommitResult.model_validate_json(text) for text in pool.map(_commit_in_a_process, given, 1)
        ]

    assert [result.status for result in results] == ["ok"] * 4
    assert {f"notes/prompts/{number}.md" for number in range(4)} <= bundle.tracked()
    assert bundle.git("status", "--porcelain") == ""


def test_overtaken_commit_is_retried_but_not_forever(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    first.write({"prompts/coder.md": "one\ntwo\n3\n"})
    second.write({"prompts/new.md": "new\n"})
    advance, overtakings = Branch.advance, [1]

    def after_a_person(self: Branch, old: str, new: str) -> None:
        if overtakings:
            overtakings.pop()
            bundle.commit({"x.txt": f"{len(overtakings)}{new}\n"})
        advance(self, old, new)

    monkeypatch.setattr(Branch, "advance", after_a_person)
    assert commit(first).status == "ok"
    assert bundle.git("rev-list", "--count", "HEAD") == "3"

    overtakings += [1] * changesets_module.ATTEMPTS
    result = commit(second)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "GIT_ERROR")
    assert "Others committed first" in result.error.message
    assert second.folder.is_dir()


def test_half_done_commit_is_finished_by_next(
    bundle: GitBundle, pair: tuple[OpenChangeset, OpenChangeset], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair
    first.write({"prompts/coder.md": "new\n"})
    repository = first.changesets.repository

    class Killed(BaseException):
        """Ends the process."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(type(repository), "set_ref", killed)
        commit(first)
    assert bundle.git("status", "--porcelain") != ""  # its files are there, the branch has not moved

    assert commit(first).status == "ok"
    assert bundle.committed("prompts/coder.md") == "new"
    assert bundle.git("status", "--porcelain") == ""
