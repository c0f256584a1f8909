"""What an agent is given to change its bundle with."""

import json
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.authoring.changesets_api import SwarmBundleApi
from goondan_tasks.changesets.policy import FOLDER, ChangesetRules, Principal
from goondan_tasks.revisions.active import ActiveRevision
from tests.git_bundle import FILES, GitBundle, make_bundle
from workers.extensions.events import EventListeners
from workers.revisions.bundle_changes import AgentBundle

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


def no_listener(_: object) -> Any:
    raise AssertionError("no listener is async")


def api(bundle: GitBundle, workdir: Path) -> SwarmBundleApi:
    workdir.mkdir(exist_ok=True)
    rules = ChangesetRules(lists=(("prompts/**",),))
    principal = Principal(workdir / FOLDER, rules, "coder", workdir.name)
    record = ActiveRevision(fakeredis.FakeRedis(), Keys(), "den")
    return AgentBundle(bundle.changesets(), principal, record, EventListeners(no_listener))


def test_agent_opens_edits_and_commits_inside_its_workdir(bundle: GitBundle, tmp_path: Path) -> None:
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


def test_policy_of_agent_holds(bundle: GitBundle, tmp_path: Path) -> None:
    mine = api(bundle, tmp_path / "workdir")
    opened = mine.open_changeset()
    Path(opened["workdir"], "echo.py").unlink()

    committed = mine.commit_changeset(opened["changesetId"])

    assert committed["status"] == "rejected"
    assert committed["error"]["violatedFiles"] == ("echo.py",)


def test_changeset_of_another_instance_is_not_found(bundle: GitBundle, tmp_path: Path) -> None:
    opened = api(bundle, tmp_path / "workdir").open_changeset()

    committed = api(bundle, tmp_path / "other").commit_changeset(opened["changesetId"])

    assert committed["error"]["code"] == "CHANGESET_NOT_FOUND"
