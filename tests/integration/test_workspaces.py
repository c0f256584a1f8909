"""Two projects share no files; a project's files stay where it finds them."""

import shutil
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan

PATIENCE = 60
BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: ["Tool/bash"] }
"""


def swarm(name: str) -> str:
    return f"""\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {{ name: {name} }}
spec: {{ entryAgent: Agent/coder, agents: [Agent/coder] }}
"""


def project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    return folder


def run(client: Client, command: str) -> str:
    result = client.call("coder", "bash__exec", {"command": command}, timeout=PATIENCE)
    assert result.status == "ok", result.error
    return str(result.output["stdout"])


def test_projects_in_same_named_folders_share_no_files(tmp_path: Path) -> None:
    shared = {"GOONDAN_STATE_ROOT": str(tmp_path / "state")}
    first, second = (project(tmp_path / place / "my-swarm") for place in ("a", "b"))

    with LocalStack(first, environment=shared) as ours, LocalStack(second, environment=shared) as theirs:
        run(ours.client, "echo mine > note; mkdir deep")

        assert run(theirs.client, "ls -A") == ""
        assert run(ours.client, "ls -A") == "deep\nnote\n"
        [here], [there] = ours.client.instances(), theirs.client.instances()
    assert (here.workspace, there.workspace) == (folder_workspace(first), folder_workspace(second))
    assert len(list((tmp_path / "state" / "workspaces").iterdir())) == 2


def test_two_swarms_of_one_folder_share_no_files(tmp_path: Path) -> None:
    bundle = project(tmp_path / "desk")
    (bundle / "swarms.yaml").write_text(f"{swarm('day')}---\n{swarm('night')}", encoding="utf-8")
    shared = {"GOONDAN_STATE_ROOT": str(tmp_path / "state")}

    with (
        LocalStack(bundle, environment={**shared, "GOONDAN_SWARM": "day"}) as day,
        LocalStack(bundle, environment={**shared, "GOONDAN_SWARM": "night"}) as night,
    ):
        run(day.client, "echo mine > note")

        assert run(night.client, "ls -A") == ""
        assert run(day.client, "ls -A") == "note\n"
        [here], [there] = day.client.instances(), night.client.instances()
    own = folder_workspace(bundle)
    assert (here.workspace, there.workspace) == (f"{own}-day", f"{own}-night")


def test_machines_that_have_bundle_elsewhere_agree_by_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = project(tmp_path / "here" / "desk")
    copy = shutil.copytree(bundle, tmp_path / "there" / "desk")
    with LocalStack(bundle, environment={"GOONDAN_WORKSPACE": "desk"}) as stack:
        run(stack.client, "echo mine > note")
        stack.stop_worker(stack.workers[0])
        with monkeypatch.context() as other:
            other.setattr(stack, "bundle", copy)
            stack.start_worker()

        assert run(stack.client, "cat note") == "mine\n"


def test_unset_workspace_refuses_second_machine_but_producer_follows_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = project(tmp_path / "here" / "desk")
    copy = shutil.copytree(bundle, tmp_path / "there" / "desk")
    with LocalStack(bundle) as stack:
        run(stack.client, "echo mine > note")
        with monkeypatch.context() as other:
            other.setattr(stack, "bundle", copy)
            with pytest.raises(AgentUnavailableError, match="the same Package or GOONDAN_WORKSPACE"):
                stack.start_worker()
        with (
            Client.connect(stack.redis_url, bundle=copy) as producer,
            Client.connect(stack.redis_url) as bare,
        ):
            assert run(producer, "cat note") == run(bare, "cat note") == "mine\n"
            workspaces = {client.agents()["coder"].workspace for client in (producer, bare)}
        env = environment(redis_url=stack.redis_url, bundle=copy, state_root=stack.state_root)
        told = goondan("doctor", "--json", env=env)
    assert workspaces == {folder_workspace(bundle)}
    [check] = [check for check in told.document["checks"] if check["name"] == "workspace of coder"]
    assert check["message"].startswith(
        f"{folder_workspace(copy)} for this bundle, but {folder_workspace(bundle)}"
    )


def test_earlier_versions_files_are_named_and_usable(tmp_path: Path) -> None:
    bundle, state = project(tmp_path / "desk"), tmp_path / "state"
    old = state / "workspaces" / "default" / "instances" / "default" / "workspace"
    old.mkdir(parents=True)
    (old / "note").write_text("old\n", encoding="utf-8")
    shared = {"GOONDAN_STATE_ROOT": str(state)}

    with LocalStack(bundle, environment=shared) as stack:
        env = environment(redis_url=stack.redis_url, bundle=bundle, state_root=state)
        first, log = goondan("doctor", env=env), stack.log(stack.workers[0])
        validated = goondan("validate", env=env)
        assert run(stack.client, "ls -A") == ""
        later = goondan("doctor", "--json", env=env)
    with LocalStack(bundle, environment={**shared, "GOONDAN_WORKSPACE": "default"}) as stack:
        assert run(stack.client, "cat note") == "old\n"
        env = environment(redis_url=stack.redis_url, bundle=bundle, state_root=state)
        chosen = goondan("doctor", "--workspace", "default", env=env)

    where = f"directories of instances in {old.parents[1]} (1)"
    assert f"workspace: {folder_workspace(bundle)}, from its folder, {bundle}: " in first.stdout
    assert (
        "warning  earlier workspace: Workspace 'default', of an earlier version of the programs or of the "
        f"bundle, still exists: {where}." in first.stdout
    )
    assert "worker.earlier_workspace" in log
    assert where in log
    assert f"no findings\nworkspace: {folder_workspace(bundle)}\n" in validated.stderr
    assert "--workspace default" in validated.stderr
    [check] = [check for check in later.document["checks"] if check["name"] == "earlier workspace"]
    assert check["level"] == "ok"
    assert "workspace: default, from GOONDAN_WORKSPACE or --workspace" in chosen.stdout
    assert "earlier workspace" not in chosen.stdout
