"""What an agent is given to change its bundle with."""

import json
from pathlib import Path

import pytest

from goondan_tasks.changesets.api import AgentBundle, SwarmBundleApi
from goondan_tasks.changesets.party import FOLDER, Party
from goondan_tasks.changesets.policy import ChangesetRules
from tests.git_bundle import FILES, GitBundle, make_bundle

SWARM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy: { changesets: { enabled: true, allowed: { files: ["prompts/**"] } } }
"""


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle."""
    return make_bundle(tmp_path / "repo", files={**FILES, "swarm.yaml": SWARM})


def api(bundle: GitBundle, workdir: Path) -> SwarmBundleApi:
    workdir.mkdir(exist_ok=True)
    rules = ChangesetRules(lists=(("prompts/**",),))
    party = Party(workdir / FOLDER, rules, "coder", workdir.name)
    return AgentBundle(
        bundle.changesets(),
        party,
        lambda: f"git:{bundle.head}",
        tell=lambda _: None,
        failure_of=lambda _: None,
    )


def test_an_agent_opens_edits_and_commits_inside_its_workdir(bundle: GitBundle, tmp_path: Path) -> None:
    mine = api(bundle, tmp_path / "workdir")

    opened = json.loads(json.dumps(mine.open_changeset("Say more")))
    Path(opened["workdir"], "prompts/coder.md").write_text("more\n", encoding="utf-8")
    committed = json.loads(json.dumps(mine.commit_changeset(opened["changesetId"], "Say more")))

    assert opened == {
        "changesetId": opened["changesetId"],
        "baseRef": committed["baseRef"],
        "workdir": str(tmp_path / "workdir/.changesets" / opened["changesetId"]),
        "hint": {"bundleRootInWorkdir": ".", "recommendedFiles": ["prompts/**"]},
    }
    assert committed == {
        "status": "ok",
        "changesetId": opened["changesetId"],
        "baseRef": f"git:{bundle.git('rev-parse', 'HEAD~1')}",
        "newRef": mine.get_active_ref(),
        "summary": {"filesChanged": ["prompts/coder.md"], "filesAdded": [], "filesDeleted": []},
    }
    assert bundle.git("log", "-1", "--format=%an") == "coder"


def test_the_policy_of_the_agent_holds(bundle: GitBundle, tmp_path: Path) -> None:
    mine = api(bundle, tmp_path / "workdir")
    opened = mine.open_changeset()
    Path(opened["workdir"], "echo.py").unlink()

    committed = mine.commit_changeset(opened["changesetId"])

    assert committed["status"] == "rejected"
    assert committed["error"]["violatedFiles"] == ("echo.py",)


def test_another_instance_s_changeset_is_not_there(bundle: GitBundle, tmp_path: Path) -> None:
    opened = api(bundle, tmp_path / "workdir").open_changeset()

    committed = api(bundle, tmp_path / "other").commit_changeset(opened["changesetId"])

    assert committed["error"]["code"] == "CHANGESET_NOT_FOUND"
