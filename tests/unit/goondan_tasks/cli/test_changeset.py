"""goondan changeset and goondan rollback."""

from pathlib import Path

import pytest

from goondan_tasks.cli.call_view import local_time
from goondan_tasks.messages import epoch_milliseconds
from tests.git_bundle import FILES, GitBundle, make_bundle
from tests.unit.goondan_tasks.cli.invoke import Outcome, goondan

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


def test_a_person_opens_edits_looks_and_commits(bundle: GitBundle, tmp_path: Path) -> None:
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


def test_an_agent_s_policy_holds_if_its_name_is_given(bundle: GitBundle) -> None:
    changeset_id, workdir = opened("--agent", "coder")
    (workdir / "new.txt").write_text("x", encoding="utf-8")

    refused = goondan("changeset", "commit", changeset_id, "--agent", "coder")
    as_a_person = goondan("changeset", "commit", changeset_id)

    assert refused.exit_code == 1
    assert "POLICY_VIOLATION" in refused.stderr
    assert refused.stderr.endswith("\nMore: https://docs.goondan.ai/errors/POLICY_VIOLATION\n")
    assert "new.txt" in refused.stderr
    assert as_a_person.exit_code == 0


def test_the_exit_code_tells_what_came_of_it(bundle: GitBundle) -> None:
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


def test_a_changeset_is_discarded_only_if_somebody_says_so(bundle: GitBundle) -> None:
    changeset_id, workdir = opened()

    asked = goondan("changeset", "discard", changeset_id)
    told = goondan("changeset", "discard", changeset_id, "--yes", "--json")

    assert asked.exit_code == 2
    assert told.document == {"discarded": changeset_id}
    assert not workdir.exists()


@pytest.mark.parametrize("arguments", [["commit"], ["diff"], ["list", "cs-1-00000000"], ["open", "x"]])
def test_ids_stand_where_they_belong(bundle: GitBundle, arguments: list[str]) -> None:
    assert goondan("changeset", *arguments).exit_code == 2


def test_a_bundle_without_git_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text(FILES["goondan.yaml"], encoding="utf-8")

    outcome = goondan("changeset", "list", "--bundle", str(tmp_path), "--json")

    assert (outcome.exit_code, code_of(outcome)) == (1, "GIT_ERROR")
    assert "git init" in outcome.document["error"]["suggestion"]


def test_on_a_narrow_terminal_the_log_has_the_beginning_of_a_ref_which_a_rollback_takes(
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


def test_an_earlier_revision_is_brought_back(bundle: GitBundle) -> None:
    old = bundle.head
    bundle.commit({"prompts/coder.md": "worse\n"})

    rolled_back = goondan("rollback", f"git:{old}")
    unknown = goondan("rollback", "git:nothing", "--json")

    assert rolled_back.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert bundle.committed("prompts/coder.md") == FILES["prompts/coder.md"].strip()
    assert (unknown.exit_code, code_of(unknown)) == (1, "GIT_ERROR")


def test_the_first_digits_of_a_revision_are_enough_if_they_mean_one(bundle: GitBundle) -> None:
    old = bundle.head
    bundle.commit({"prompts/coder.md": "worse\n"})

    too_short = goondan("rollback", f"git:{old[:3]}")
    rolled_back = goondan("rollback", f"git:{old[:12]}")
    again = goondan("rollback", old)

    assert (too_short.exit_code, "There is no revision" in too_short.stderr) == (1, True)
    assert rolled_back.stdout.splitlines() == [f"git:{bundle.head}", "M prompts/coder.md"]
    assert "Nothing was changed" in again.stderr


def test_a_changeset_that_changes_nothing_says_so(bundle: GitBundle) -> None:
    shown = goondan("changeset", "open")
    changeset_id = shown.stdout.split()[0]

    committed = goondan("changeset", "commit", changeset_id)

    assert f"goondan changeset diff|commit|discard {changeset_id}" in shown.stderr
    assert (committed.exit_code, committed.stdout) == (0, f"git:{bundle.head}\n")
    assert "Nothing was changed" in committed.stderr


def test_the_log_has_the_time_of_the_clock_on_the_wall(bundle: GitBundle) -> None:
    [commit] = goondan("changeset", "log", "--json", "--limit", "1").document
    [_, row] = goondan("changeset", "log", "--limit", "1").stdout.splitlines()

    assert row.startswith(local_time(epoch_milliseconds(commit["committedAt"])))
