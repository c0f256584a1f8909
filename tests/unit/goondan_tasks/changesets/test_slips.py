"""What a hostile agent may put into its directory to get past the policy, or to get something run."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetError, CommitResult
from goondan_tasks.changesets import working_files
from goondan_tasks.changesets.policy import ChangesetRules, Principal
from goondan_tasks.changesets.working_files import leads_out
from goondan_tasks.revisions.checkouts import Folder, Found
from goondan_tasks.revisions.git import Git
from tests.git_bundle import GitBundle, OpenChangeset, git, make_bundle, open_changeset
from tests.unit.goondan_tasks.bundle.writing import HANDLERS

PROMPTS = ChangesetRules(lists=(("prompts/**",),))


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle at the root of its repository."""
    return make_bundle(tmp_path / "repo")


@pytest.fixture
def changeset(bundle: GitBundle, tmp_path: Path) -> OpenChangeset:
    """Open a changeset that may change prompts."""
    return open_changeset(bundle.changesets(), tmp_path / "work", PROMPTS)


def commit(changeset: OpenChangeset, rules: ChangesetRules = PROMPTS) -> CommitResult:
    return changeset.changesets.commit(changeset.changeset_id, principal=Principal(rules=rules))


def violations(result: CommitResult) -> tuple[str, ...]:
    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "POLICY_VIOLATION")
    assert result.error.violated_files is not None
    return result.error.violated_files


def remove(folder: Path) -> None:
    (folder / "echo.py").unlink()


def rename_into_what_is_allowed(folder: Path) -> None:
    (folder / "echo.py").rename(folder / "prompts/echo.py")


def change_a_mode(folder: Path) -> None:
    (folder / "echo.py").chmod(0o755)


def put_a_link_in_its_place(folder: Path) -> None:
    (folder / "echo.py").rename(folder / "prompts/code.py")
    (folder / "echo.py").symlink_to("prompts/code.py")


def put_a_pipe_in_its_place(folder: Path) -> None:
    (folder / "echo.py").unlink()
    os.mkfifo(folder / "echo.py")


def put_a_directory_in_its_place(folder: Path) -> None:
    (folder / "echo.py").unlink()
    (folder / "echo.py").mkdir()
    (folder / "echo.py/__init__.py").write_text(HANDLERS, encoding="utf-8")


def change_it_and_ignore_it(folder: Path) -> None:
    (folder / "echo.py").write_text(f"{HANDLERS}# mine\n", encoding="utf-8")
    (folder / "prompts/.gitignore").write_text("/../echo.py\n", encoding="utf-8")


def make_it_a_repository(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "Mine")
    (folder / "echo.py").write_text(f"{HANDLERS}# mine\n", encoding="utf-8")
    git(folder, "update-index", "--assume-unchanged", "echo.py")


@pytest.mark.parametrize(
    "trick",
    [
        remove,
        rename_into_what_is_allowed,
        change_a_mode,
        put_a_link_in_its_place,
        put_a_pipe_in_its_place,
        put_a_directory_in_its_place,
        change_it_and_ignore_it,
        make_it_a_repository,
    ],
)
def test_no_trick_changes_file_that_is_not_allowed(
    bundle: GitBundle, changeset: OpenChangeset, trick: Callable[[Path], None]
) -> None:
    before = bundle.head

    trick(changeset.folder)

    assert [path for path in violations(commit(changeset)) if path.startswith("echo.py")]
    assert bundle.head == before


@pytest.mark.parametrize(
    "name",
    ["tab\tname.py", "ünïcode.py", 'quote".py', "line\nbreak.py", "-rf", ":(top)x", "*", " ", "deep/new/x"],
)
def test_no_new_file_of_any_name_gets_past(changeset: OpenChangeset, name: str) -> None:
    changeset.write({name: "x"})

    assert violations(commit(changeset)) == (name,)


def test_non_unicode_name_is_committed_and_reported(bundle: GitBundle, changeset: OpenChangeset) -> None:
    Path(os.fsdecode(os.fsencode(changeset.folder) + b"/prompts/\xff.md")).write_text("x", encoding="utf-8")

    result = commit(changeset)

    assert result.summary is not None
    assert result.summary.files_added == ("prompts/\\udcff.md",)
    names = [os.fsencode(path.name) for path in (bundle.folder / "prompts").iterdir()]
    assert sorted(names) == [b"coder.md", b"\xff.md"]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("prompts/x", "/etc/passwd"),
        ("prompts/x", "../../x"),
        ("prompts/x", "a/../../../x"),
        ("prompts/x", "../prompts/../../x"),
        ("x", ".."),
    ],
)
def test_link_out_of_bundle_is_refused(bundle: GitBundle, tmp_path: Path, path: str, target: str) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "other")
    (changeset.folder / path).symlink_to(target)

    assert violations(commit(changeset, ChangesetRules())) == (path,)


@pytest.mark.parametrize(
    ("path", "target"), [("a/b/c", "../../x"), ("a", "b"), ("a/b", "../b/c"), ("a", ".")]
)
def test_link_inside_bundle_is_not_fault(path: str, target: str) -> None:
    assert not leads_out(path, target)


def test_linked_directory_is_not_looked_into(changeset: OpenChangeset, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text("secret", encoding="utf-8")
    shutil.rmtree(changeset.folder / "prompts")
    (changeset.folder / "prompts").symlink_to(tmp_path / "secrets")

    assert violations(commit(changeset)) == ("prompts",)


def test_directory_that_is_link_itself_is_refused(changeset: OpenChangeset, tmp_path: Path) -> None:
    changeset.folder.rename(tmp_path / "moved")
    changeset.folder.symlink_to(tmp_path / "moved")

    result = commit(changeset)

    assert (result.status, result.error and result.error.code) == ("failed", "GIT_ERROR")


def test_pipes_and_sockets_are_refused_at_once(changeset: OpenChangeset) -> None:
    os.mkfifo(changeset.folder / "prompts/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        os.chdir(changeset.folder)  # the name of a socket may not be long
        server.bind("prompts/socket")
        os.fchdir(here)
        os.close(here)

        assert violations(commit(changeset)) == ("prompts/pipe", "prompts/socket")


@pytest.mark.parametrize("name", ["prompts/.GIT/config", "prompts/git~1/config"])
def test_names_git_may_treat_specially_are_refused(changeset: OpenChangeset, name: str) -> None:
    changeset.write({name: "x"})

    assert violations(commit(changeset)) == (name,)


def test_files_too_large_or_too_many_are_refused(
    changeset: OpenChangeset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_files, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(working_files, "MAX_CHANGES", 2)
    changeset.write({"prompts/a": "0123456789x", "prompts/b": "x", "prompts/c": "x", "prompts/d": "x"})
    assert violations(commit(changeset)) == ("prompts/a", "prompts/d")

    monkeypatch.setattr(working_files, "MAX_FILES", 3)
    result = commit(changeset)
    assert result.error is not None
    assert (result.status, result.error.violated_files) == ("rejected", None)
    assert "more than 3 files" in result.error.message


def test_files_too_large_together_are_refused(
    changeset: OpenChangeset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_files, "MAX_BYTES", 10)
    changeset.write({"prompts/a": "12345", "prompts/b": "12345", "prompts/c": "1", "prompts/d": ""})

    assert violations(commit(changeset)) == ("prompts/c",)


def test_refused_changes_leave_nothing_in_git(bundle: GitBundle, changeset: OpenChangeset) -> None:
    before = bundle.git("count-objects")
    changeset.write({"secrets/a.txt": "x", "echo.py": f"{HANDLERS}# mine\n"})

    assert violations(commit(changeset)) == ("echo.py", "secrets/a.txt")
    assert bundle.git("count-objects") == before


def test_file_that_is_too_large_is_not_read(changeset: OpenChangeset) -> None:
    read: list[str] = []

    class Watched(Folder):
        """Says which files are read."""

        def digest(self, found: Found, algorithm: str, *, head: str = "") -> str:
            read.append(found.path)
            return super().digest(found, algorithm, head=head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working_files, "Folder", Watched)
        for name in ("echo.py", "prompts/new.bin"):
            with (changeset.folder / name).open("ab") as file:
                file.truncate(working_files.MAX_FILE_BYTES + 1)
        refused = violations(commit(changeset))

    assert refused == ("echo.py", "prompts/new.bin")
    assert sorted(read) == ["goondan.yaml", "prompts/coder.md"]


def test_directories_without_end_are_refused(changeset: OpenChangeset) -> None:
    deep = changeset.folder / "prompts" / "/".join("d" * 100)
    deep.mkdir(parents=True)

    assert violations(commit(changeset)) == ("prompts/" + "/".join("d" * 64),)


def test_files_ignored_by_git_are_left_out(bundle: GitBundle, tmp_path: Path) -> None:
    bundle.commit({".gitignore": "*.pyc\n"})
    changeset = open_changeset(bundle.changesets(), tmp_path / "other")
    changeset.write(
        {"prompts/coder.md": "new\n", "x.pyc": "x", ".env": "KEY=1", "prompts/.gitignore": "/*.tmp\n"}
    )
    changeset.write({".gitignore": "*.pyc\n.env\n", "prompts/a.tmp": "x"})

    result = commit(changeset, ChangesetRules())

    assert result.summary is not None
    assert result.summary.files_added == ("prompts/.gitignore",)
    assert result.summary.files_changed == (".gitignore", "prompts/coder.md")


def test_ignore_files_above_bundle_count(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo", prefix="deep/notes/")
    (bundle.root / ".gitignore").write_text("__pycache__/\n/deep/notes/*.log\n", encoding="utf-8")
    bundle.commit({})
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"__pycache__/a.pyc": "x", "a.log": "x", "prompts/a.log": "x"})

    result = commit(changeset, ChangesetRules())

    assert result.summary is not None
    assert result.summary.files_added == ("prompts/a.log",)


def test_submodule_stays_and_takes_no_files(bundle: GitBundle, tmp_path: Path) -> None:
    bundle.git("update-index", "--add", "--cacheinfo", f"160000,{bundle.head},vendor")
    bundle.git("commit", "--quiet", "-m", "A submodule")
    changeset = open_changeset(bundle.changesets(), tmp_path / "other")
    changeset.write({"prompts/coder.md": "new\n"})
    assert commit(changeset, ChangesetRules()).status == "ok"
    assert "160000" in bundle.git("ls-tree", "HEAD", "vendor")

    other = open_changeset(bundle.changesets(), tmp_path / "other")
    other.write({"vendor/x.py": "x"})
    assert violations(commit(other, ChangesetRules())) == ("vendor/x.py",)


def test_no_program_in_repository_bundle_or_directory_runs(bundle: GitBundle, tmp_path: Path) -> None:
    alarm = tmp_path / "alarm"
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/sh\ntouch {alarm}\ncat\n", encoding="utf-8")
    script.chmod(0o755)
    hooks = (
        "pre-commit",
        "post-checkout",
        "reference-transaction",
        "post-index-change",
        "pre-push",
        "post-merge",
    )
    for hook in hooks:
        shutil.copy(script, bundle.root / ".git/hooks" / hook)
    for name in ("core.fsmonitor", "diff.external", "diff.shout.textconv", "merge.shout.driver"):
        bundle.git("config", name, str(script))
    changeset = open_changeset(bundle.changesets(), tmp_path / "other")
    changeset.write({"prompts/coder.md": "new\n", "prompts/.gitattributes": "*.md diff=shout merge=shout\n"})
    (changeset.folder / ".git").mkdir()
    (changeset.folder / ".git/config").write_text(f"[core]\n\tfsmonitor = {script}\n", encoding="utf-8")
    (changeset.folder / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")

    changeset.changesets.diff(changeset.changeset_id)
    result = commit(changeset, ChangesetRules())

    assert (result.status, alarm.exists()) == ("ok", False)


def test_git_attributes_do_not_alter_committed_content(bundle: GitBundle, tmp_path: Path) -> None:
    bundle.git("config", "filter.swap.clean", "sed s/good/evil/")
    changeset = open_changeset(bundle.changesets(), tmp_path / "other")
    changeset.write({"prompts/coder.md": "good\r\n", ".gitattributes": "*.md filter=swap text eol=lf\n"})

    assert commit(changeset, ChangesetRules()).status == "ok"
    assert bundle.git("cat-file", "-s", "HEAD:prompts/coder.md") == str(len("good\r\n"))


@pytest.mark.parametrize("name", [".gitattributes", "prompts/.GitAttributes"])
def test_agent_cannot_commit_git_attributes(bundle: GitBundle, tmp_path: Path, name: str) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "other", agent="coder")
    changeset.write({name: "*.yaml working-tree-encoding=UTF-16\n", "prompts/coder.md": "new\n"})

    result = changeset.changesets.commit(changeset.changeset_id, principal=Principal(agent="coder"))

    assert violations(result) == (name,)
    assert "only a person" in (result.error.message if result.error else "")


def test_directory_of_changesets_may_be_no_link(bundle: GitBundle, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".changesets").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ChangesetError, match="Not a directory"):
        open_changeset(bundle.changesets(), tmp_path / ".changesets")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_instance_that_is_link_gets_no_directory_elsewhere(bundle: GitBundle, tmp_path: Path) -> None:
    instances = tmp_path / "workspaces" / "swarm" / "instances"
    instances.mkdir(parents=True)
    (instances / "one").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()

    with pytest.raises(ChangesetError, match="Not a directory"):
        open_changeset(bundle.changesets(), instances / "one" / "workspace" / ".changesets")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_link_beside_changesets_leads_no_operation_elsewhere(
    changeset: OpenChangeset, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    changeset.write({"prompts/coder.md": "changed\n"})
    changeset.folder.parent.rename(elsewhere)
    changeset.folder.parent.symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}

    assert commit(changeset).status == "failed"
    with pytest.raises(OSError):
        changeset.changesets.discard(changeset.changeset_id)
    with pytest.raises(OSError):
        changeset.changesets.diff(changeset.changeset_id)
    with pytest.raises(ChangesetError):
        changeset.changesets.open(Principal(changeset.folder.parent))
    assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before


def test_git_writes_nothing_by_path_in_changeset_directory(
    bundle: GitBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = set[Path | None]()
    run = Git.status

    def watched(git: Git, *given: Any, **options: Any) -> tuple[int, bytes]:
        folders.update((git.folder, git.work_tree))
        return run(git, *given, **options)

    monkeypatch.setattr(Git, "status", watched)
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "changed\n", "prompts/new.md": "new\n"})
    changeset.changesets.diff(changeset.changeset_id)
    assert commit(changeset).status == "ok"

    assert [folder for folder in folders if folder and folder.is_relative_to(tmp_path / "work")] == []
