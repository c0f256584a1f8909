"""Every outcome of a commit that the documents have."""

import json
from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.changesets.policy import ChangesetRules, Principal
from goondan_tasks.changesets.working_files import WorkingFiles
from tests.git_bundle import FILES, GitBundle, make_bundle, open_changeset
from tests.unit.goondan_tasks.bundle.writing import HANDLERS

PROMPTS = ChangesetRules(lists=(("prompts/**",),))


wherever_it_is = pytest.mark.parametrize("bundle", ["", "deep/n[o]tes/"], indirect=True)


@pytest.fixture
def bundle(tmp_path: Path, request: pytest.FixtureRequest) -> GitBundle:
    """Make a bundle, at the root of its repository unless a test says otherwise."""
    return make_bundle(tmp_path / "repo", prefix=getattr(request, "param", ""))


@wherever_it_is
def test_opened_changeset_has_directory_with_committed_bundle(bundle: GitBundle, tmp_path: Path) -> None:
    opened = bundle.changesets().open(Principal(tmp_path / "work", PROMPTS, None, "issue-42"), "Correct it")

    workdir = Path(opened.workdir)
    assert opened.base_ref == f"git:{bundle.head}"
    assert workdir == tmp_path / "work" / opened.changeset_id
    assert opened.hint.recommended_files == ("prompts/**",)
    root = workdir / opened.hint.bundle_root_in_workdir
    found = {
        str(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*") if path.is_file()
    }
    assert found == {"echo.py": HANDLERS, **FILES}


@wherever_it_is
def test_commit_updates_git_and_checkout_removing_directory(bundle: GitBundle, tmp_path: Path) -> None:
    base = bundle.head
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n", "prompts/more.md": "more\n"})
    (changeset.folder / "echo.py").chmod(0o755)

    result = changeset.changesets.commit(changeset.changeset_id, "Say more", Principal(agent="coder"))

    assert result.to_wire() == {
        "status": "ok",
        "changesetId": changeset.changeset_id,
        "baseRef": f"git:{base}",
        "newRef": f"git:{bundle.head}",
        "summary": {
            "filesChanged": ("echo.py", "prompts/coder.md"),
            "filesAdded": ("prompts/more.md",),
            "filesDeleted": (),
        },
    }
    assert bundle.git("rev-parse", "HEAD~1") == base
    assert (bundle.folder / "prompts/more.md").read_text("utf-8") == "more\n"
    assert bundle.git("status", "--porcelain") == ""
    assert bundle.git("log", "-1", "--format=%an <%ae> %s") == "coder <coder@goondan.invalid> Say more"
    assert list((tmp_path / "work").iterdir()) == []


@wherever_it_is
def test_files_can_be_removed_and_renamed(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    (changeset.folder / "prompts/coder.md").rename(changeset.folder / "prompts/better name \"'ü\n.md")

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.summary is not None
    assert result.summary.files_added == ("prompts/better name \"'ü\n.md",)
    assert result.summary.files_deleted == ("prompts/coder.md",)
    assert [path.name for path in (bundle.folder / "prompts").iterdir()] == ["better name \"'ü\n.md"]
    assert bundle.git("log", "-1", "--format=%s") == f"Changeset {changeset.changeset_id}"


@wherever_it_is
@pytest.mark.requirement("changeset.history-in-git")
def test_changeset_history_is_kept_in_git_alone(bundle: GitBundle, tmp_path: Path) -> None:
    before = {path.name for path in bundle.root.iterdir()}
    changeset = open_changeset(bundle.changesets(), tmp_path / "work", agent="coder")
    changeset.write({"prompts/coder.md": "new\n"})
    [listed] = bundle.changesets().all()
    changeset.changesets.commit(changeset.changeset_id, "Say it again")

    [last, first] = bundle.changesets().log()
    assert (listed.changeset_id, listed.agent_name, listed.reason) == (
        changeset.changeset_id,
        "coder",
        "a test",
    )
    assert (last["changesetId"], last["message"]) == (changeset.changeset_id, "Say it again")
    assert first["changesetId"] is None
    assert bundle.changesets().all() == []
    assert {path.name for path in bundle.root.iterdir()} == before
    assert "changesets" not in "".join(bundle.tracked())


def test_without_change_base_is_new_ref(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")

    result = changeset.changesets.commit(changeset.changeset_id)

    assert (result.status, result.new_ref) == ("ok", f"git:{bundle.head}")
    assert result.new_ref == result.base_ref
    assert not changeset.folder.exists()


@pytest.mark.parametrize(
    "rules",
    [
        PROMPTS,
        ChangesetRules(lists=(("**",), ("prompts/**",))),
        ChangesetRules(lists=(("prompts/**",), ("**",))),
    ],
    ids=["swarm", "agent", "swarm and agent"],
)
def test_change_against_policy_is_rejected_and_kept(
    bundle: GitBundle, tmp_path: Path, rules: ChangesetRules
) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work", rules)
    changeset.write({"prompts/coder.md": "new\n", "echo.py": f"{HANDLERS}# more\n"})
    before = bundle.head

    result = changeset.changesets.commit(changeset.changeset_id, principal=Principal(rules=rules))

    assert result.status == "rejected"
    assert result.error is not None
    assert (result.error.code, result.error.violated_files) == ("POLICY_VIOLATION", ("echo.py",))
    assert bundle.head == before
    changeset.write({"echo.py": HANDLERS})
    again = changeset.changesets.commit(changeset.changeset_id, principal=Principal(rules=rules))
    assert again.summary is not None
    assert (again.status, again.summary.files_changed) == ("ok", ("prompts/coder.md",))


def test_disabled_changesets_are_neither_opened_nor_committed(bundle: GitBundle, tmp_path: Path) -> None:
    off = ChangesetRules(is_enabled=False, lists=(("**",),))
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})

    with pytest.raises(ChangesetError, match="does not allow changesets"):
        open_changeset(bundle.changesets(), tmp_path / "other", off)
    result = changeset.changesets.commit(changeset.changeset_id, principal=Principal(rules=off))

    assert not (tmp_path / "other").exists()
    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "POLICY_VIOLATION")
    assert "policy.changesets.enabled" in result.error.message


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"goondan.yaml": "kind: Tool\n"}, "apiVersion"),
        ({"echo.py": "handlers = {\n"}, "was never closed"),
        ({"echo.py": "raise RuntimeError('no')\n"}, "RuntimeError: no"),
        ({"echo.py": "handlers = {'other': print}\n"}, "no handler 'run'"),
    ],
)
def test_broken_bundle_is_rejected_with_findings_and_kept(
    bundle: GitBundle, tmp_path: Path, files: dict[str, str], told: str
) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write(files)
    before = bundle.head

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.status == "rejected"
    assert result.error is not None
    assert result.error.code == "BUNDLE_INVALID"
    assert result.error.findings
    assert told in result.error.message + json.dumps(result.error.findings)
    assert {finding["file"] for finding in result.error.findings} <= {"goondan.yaml", "echo.py"}
    assert (bundle.head, changeset.folder.is_dir()) == (before, True)


def test_finding_names_no_folder_that_will_be_gone(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    (changeset.folder / "echo.py").unlink()

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.error is not None and result.error.findings is not None
    [finding] = result.error.findings
    assert finding["code"] == "E_CONFIG_ENTRY_NOT_FOUND"
    assert finding["suggestion"].endswith("it starts from the changeset's directory.")
    assert "goondan-check-" not in json.dumps(result.error.findings) + result.error.message


def test_committed_files_are_checked_not_directory_files(bundle: GitBundle, tmp_path: Path) -> None:
    bundle.commit({".gitignore": "*.secret.py\n"})
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    text = "from .a import handlers\n".replace(".a", ".words_secret")
    changeset.write({"echo.py": text, "words_secret.py": HANDLERS, ".gitignore": "words_secret.py\n"})

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "BUNDLE_INVALID")


@pytest.mark.parametrize(
    "name", ["cs-1-abcdef01", "", "../x", "cs-1-abcdef01/../..", "HEAD", "x" * 5000, "\0"]
)
def test_unknown_changeset_fails(bundle: GitBundle, name: str) -> None:
    result = bundle.changesets().commit(name)

    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "CHANGESET_NOT_FOUND")
    with pytest.raises(ChangesetError):
        bundle.changesets().discard(name)


def test_another_instance_s_changeset_is_unknown(bundle: GitBundle, tmp_path: Path) -> None:
    parties = [Principal(tmp_path / key, agent="coder", instance_key=key) for key in ("mine", "yours")]
    changeset_id = bundle.changesets().open(parties[0]).changeset_id
    (tmp_path / "yours" / changeset_id).mkdir(parents=True)

    result = bundle.changesets().commit(changeset_id, principal=parties[1])

    assert result.error is not None
    assert result.error.code == "CHANGESET_NOT_FOUND"
    assert bundle.changesets().commit(changeset_id, principal=parties[0]).status == "ok"


@pytest.mark.parametrize("fault", ["detached", "locked", "no git"])
def test_git_failure_is_reported_keeping_work(
    bundle: GitBundle, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})
    if fault == "detached":
        bundle.git("checkout", "--quiet", "--detach")
    elif fault == "locked":
        (bundle.root / ".git/index.lock").touch()
    else:
        monkeypatch.setenv("PATH", str(tmp_path))

    result = changeset.changesets.commit(changeset.changeset_id)

    told = {"detached": "HEAD is detached", "locked": "index.lock", "no git": "no git command"}
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "GIT_ERROR")
    assert told[fault] in result.error.message
    assert (changeset.folder / "prompts/coder.md").read_text("utf-8") == "new\n"


@wherever_it_is
def test_person_s_uncommitted_changes_elsewhere_are_left_alone(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})
    (bundle.folder / "echo.py").write_text(f"{HANDLERS}# mine\n", encoding="utf-8")

    assert changeset.changesets.commit(changeset.changeset_id).status == "ok"
    assert (bundle.folder / "echo.py").read_text("utf-8") == f"{HANDLERS}# mine\n"
    assert "# mine" not in bundle.committed("echo.py")
    assert bundle.git("status", "--porcelain").split() == ["M", f"{bundle.prefix}echo.py"]


def test_uncommitted_changes_of_same_file_are_not_overwritten(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})
    (bundle.folder / "prompts/coder.md").write_text("mine\n", encoding="utf-8")
    before = bundle.head

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "GIT_ERROR")
    assert "prompts/coder.md" in result.error.message
    assert (bundle.head, changeset.folder.is_dir()) == (before, True)
    assert (bundle.folder / "prompts/coder.md").read_text("utf-8") == "mine\n"


def test_file_unknown_to_git_is_not_overwritten(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/new.md": "new\n"})
    (bundle.folder / "prompts/new.md").write_text("mine\n", encoding="utf-8")

    result = changeset.changesets.commit(changeset.changeset_id)

    assert result.error is not None
    assert (result.status, "prompts/new.md" in result.error.message) == ("failed", True)
    assert (bundle.folder / "prompts/new.md").read_text("utf-8") == "mine\n"


def test_commit_counts_even_if_cleanup_fails(
    bundle: GitBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})

    def fails(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(WorkingFiles, "remove", fails)
        first = changeset.changesets.commit(changeset.changeset_id)
    again = changeset.changesets.commit(changeset.changeset_id)

    assert (first.status, again.status) == ("ok", "ok")
    assert first.new_ref == again.new_ref == f"git:{bundle.head}"
    assert bundle.changesets().all() == []


def test_commit_message_keeps_all_git_accepts(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})

    text = "# one\0\nGoondan-Changeset: forged\n\ud800"
    assert changeset.changesets.commit(changeset.changeset_id, text).status == "ok"
    [last, _] = bundle.changesets().log()
    assert last["changesetId"] == changeset.changeset_id
    assert str(last["message"]).startswith("# one")


@pytest.mark.parametrize(
    "message", ["none of ours", "Open\n\n{}", "Open\n\nnull", 'Open\n\n{"workdir": "/"}']
)
def test_refs_that_others_made_are_no_changesets(bundle: GitBundle, message: str) -> None:
    commit = bundle.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", message)
    for name in ("cs-1-00000000", "nested/cs-1-00000000"):
        bundle.git("update-ref", f"refs/goondan/changesets/{name}", commit)

    assert bundle.changesets().all() == []


def test_only_changesets_own_directory_is_ever_removed(bundle: GitBundle, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    about = {"workdir": str(tmp_path / "precious"), "openedAt": "", "changesetId": "", "baseRef": ""}
    commit = bundle.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", f"Open\n\n{json.dumps(about)}")
    bundle.git("update-ref", "refs/goondan/changesets/cs-1-00000000", commit)

    bundle.changesets().discard("cs-1-00000000")

    assert (tmp_path / "precious").is_dir()
    assert bundle.changesets().all() == []


def test_discarded_changeset_leaves_nothing(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})

    changeset.changesets.discard(changeset.changeset_id)

    assert not changeset.folder.exists()
    assert bundle.changesets().all() == []
    assert bundle.git("for-each-ref", "refs/goondan") == ""


@wherever_it_is
def test_diff_shows_pending_changes(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "one\n2\nthree\n", "prompts/new.md": "new\n"})

    diff = changeset.changesets.diff(changeset.changeset_id)

    assert "-two\n+2\n" in diff
    assert f"+++ b/{bundle.prefix}prompts/new.md" in diff


def test_garbage_collection_takes_nothing_from_open_changeset(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})
    bundle.git("commit", "--quiet", "--amend", "-m", "Rewritten")
    bundle.git("reflog", "expire", "--expire=now", "--all")
    bundle.git("gc", "--quiet", "--prune=now")

    assert changeset.changesets.commit(changeset.changeset_id).status == "ok"


def test_worktree_of_bare_repository_will_do(tmp_path: Path) -> None:
    origin = make_bundle(tmp_path / "origin")
    origin.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    GitBundle(tmp_path / "bare.git").git("worktree", "add", "--quiet", str(tmp_path / "tree"), "main")
    changeset = open_changeset(GitBundle(tmp_path / "tree").changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})

    assert changeset.changesets.commit(changeset.changeset_id).status == "ok"
    assert (tmp_path / "tree/prompts/coder.md").read_text("utf-8") == "new\n"


def test_bundle_without_git_or_commit_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(ChangesetError, match="in no git repository"):
        GitBundle(tmp_path / "plain").changesets()

    bundle = make_bundle(tmp_path / "repo")
    (bundle.root / "new").mkdir()
    with pytest.raises(ChangesetError, match="is not committed"):
        open_changeset(GitBundle(bundle.root, "new/").changesets(), tmp_path / "work")


def test_log_is_read_whatever_messages_say(bundle: GitBundle, tmp_path: Path) -> None:
    changeset = open_changeset(bundle.changesets(), tmp_path / "work")
    changeset.write({"prompts/coder.md": "new\n"})
    changeset.changesets.commit(changeset.changeset_id, "tidy\x1fup\x1e\x1b[2Jall\nmore\ttext")
    bundle.git("commit", "--quiet", "--allow-empty", "-m", "raw\x1f\x1e")

    [raw, tidy, first] = bundle.changesets().log()

    assert [raw["message"], tidy["message"], first["message"]] == [
        "raw\x1f\x1e",
        "tidyup[2Jall more\ttext",
        "Begin",
    ]
    assert [raw["changesetId"], tidy["changesetId"]] == [None, changeset.changeset_id]
