"""What no agent can allow itself, and no principal can rename."""

from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetError, CommitError
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.policy import PERSON, ChangesetRules, Principal
from goondan_tasks.revisions.checkouts import RevisionSource
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL

PACKAGE = """\
apiVersion: goondan.ai/v1
kind: Package
metadata: { name: notes }
spec: {}
"""
LIMITED = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec:
  changesets: { allowed: { files: ["goondan.yaml", "prompts/**"] } }
"""
OTHER = AGENT.replace("coder", "other")
SWARM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: ["Agent/coder", "Agent/other"]
  policy: { changesets: { enabled: true, allowed: { files: ["goondan.yaml", "prompts/**", "*.md"] } } }
"""
SECOND = SWARM.replace("name: den", "name: second")
BUNDLE = "---\n".join((PACKAGE, TOOL, LIMITED, OTHER, SWARM))


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle that agents may change."""
    return make_bundle(tmp_path / "repo", files={"goondan.yaml": BUNDLE, "prompts/coder.md": "one\n"})


def coder(bundle: GitBundle, tmp_path: Path) -> Principal:
    rules = ChangesetRules.of(load_bundle(bundle.folder), "coder")
    return Principal(tmp_path / "work", rules, "coder", "issue-42")


def changed(changesets: Changesets, principal: Principal, text: str) -> str:
    opened = changesets.open(principal)
    Path(opened.workdir, "goondan.yaml").write_text(text, encoding="utf-8")
    return opened.changeset_id


def refusal(bundle: GitBundle, principal: Principal, text: str) -> CommitError:
    before = bundle.head
    result = bundle.changesets().commit(changed(bundle.changesets(), principal, text), principal=principal)
    assert (result.status, bundle.head) == ("rejected", before)
    return result.error or pytest.fail()


@pytest.mark.parametrize(
    "text",
    [
        BUNDLE.replace('"*.md"', '"**"'),
        BUNDLE.replace("enabled: true, ", ""),
        BUNDLE.replace('["goondan.yaml", "prompts/**"]', '["**"]'),
        BUNDLE.replace(LIMITED, AGENT),
        f"{BUNDLE}---\n{AGENT.replace('coder', 'third')}",
        f"{BUNDLE}---\n{SECOND}",
    ],
    ids=["swarm", "off", "agent", "agent without limits", "new agent without limits", "new swarm"],
)
def test_agent_cannot_change_what_agents_may_change(bundle: GitBundle, tmp_path: Path, text: str) -> None:
    error = refusal(bundle, coder(bundle, tmp_path), text)

    assert (error.code, error.violated_files) == ("POLICY_VIOLATION", ("goondan.yaml",))


def test_agent_may_change_unprotected_part_person_whole_file(bundle: GitBundle, tmp_path: Path) -> None:
    principal = coder(bundle, tmp_path)
    described = BUNDLE.replace("Echoes.", "Says it again.")
    changesets = bundle.changesets()

    by_agent = changesets.commit(changed(changesets, principal, described), principal=principal)
    opened = changed(changesets, Principal(tmp_path / "mine"), described.replace('"*.md"', '"**"'))
    by_person = changesets.commit(opened, principal=PERSON)

    assert (by_agent.status, by_person.status) == ("ok", "ok")


def test_prohibition_holds_for_changesets_opened_before(bundle: GitBundle, tmp_path: Path) -> None:
    principal, changesets = coder(bundle, tmp_path), bundle.changesets()
    opened = changesets.open(principal)
    Path(opened.workdir, "prompts/coder.md").write_text("two\n", encoding="utf-8")
    bundle.commit({"goondan.yaml": BUNDLE.replace("enabled: true, ", "")})

    result = changesets.commit(opened.changeset_id, principal=principal)

    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "POLICY_VIOLATION")
    assert bundle.committed("prompts/coder.md") == "one"
    with pytest.raises(ChangesetError, match="does not allow changesets"):
        changesets.open(principal)


def test_unreadable_tip_allows_no_change(bundle: GitBundle, tmp_path: Path) -> None:
    principal, changesets = coder(bundle, tmp_path), bundle.changesets()
    changeset_id = changed(changesets, principal, BUNDLE.replace("Echoes.", "Says it again."))
    bundle.commit({"goondan.yaml": "kind: ["})

    result = changesets.commit(changeset_id, principal=principal)

    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "BUNDLE_INVALID")


@pytest.mark.parametrize("principal", ["agent", "person"])
def test_swarm_cannot_move_to_another_workspace(bundle: GitBundle, tmp_path: Path, principal: str) -> None:
    who = Principal(tmp_path / "mine") if principal == "person" else coder(bundle, tmp_path)
    error = refusal(bundle, who, BUNDLE.replace("name: notes", "name: away"))

    assert error.code == "BUNDLE_INVALID"
    assert "workspace 'away' instead of workspace 'notes'" in error.message
    assert error.findings is not None
    assert (error.findings[0]["file"], error.findings[0]["resource"]) == ("goondan.yaml", "Package/away")


@pytest.mark.parametrize("principal", ["agent", "person"])
def test_swarm_that_workers_run_cannot_be_removed(bundle: GitBundle, tmp_path: Path, principal: str) -> None:
    who = Principal(tmp_path / "mine") if principal == "person" else coder(bundle, tmp_path)
    changesets = Changesets.of(RevisionSource.of(bundle.folder), swarm="den")

    result = changesets.commit(
        changed(changesets, who, BUNDLE.replace("name: den", "name: lair")), principal=who
    )

    assert result.error is not None
    assert (result.status, result.error.code) == ("rejected", "BUNDLE_INVALID")
    assert "no Swarm 'den'" in result.error.message


def test_tip_without_swarm_refuses_agent_not_person(bundle: GitBundle, tmp_path: Path) -> None:
    changesets = Changesets.of(RevisionSource.of(bundle.folder), swarm="den")
    agent, person = coder(bundle, tmp_path), Principal(tmp_path / "mine")
    changeset_id = changed(changesets, agent, BUNDLE)
    bundle.commit({"goondan.yaml": BUNDLE.replace("name: den", "name: lair")})

    by_agent = changesets.commit(changeset_id, principal=agent)
    by_person = changesets.commit(changed(changesets, person, BUNDLE), principal=person)

    assert by_agent.error is not None
    assert (by_agent.status, by_agent.error.code, by_person.status) == ("rejected", "BUNDLE_INVALID", "ok")
    with pytest.raises(ChangesetError, match="no Swarm 'den'"):
        changesets.roll_back("HEAD~1")


def test_rollback_does_not_move_it_either(bundle: GitBundle) -> None:
    bundle.commit({"goondan.yaml": BUNDLE.replace("name: notes", "name: lair")})

    with pytest.raises(ChangesetError, match="workspace 'notes' instead of workspace 'lair'"):
        bundle.changesets().roll_back("HEAD~1")
