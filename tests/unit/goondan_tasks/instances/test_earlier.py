"""The workspace of earlier versions is found, and named."""

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.instances.earlier import EarlierWorkspace, earlier_workspace
from goondan_tasks.instances.table import Instances, encoded
from goondan_tasks.revisions.active import ActiveRevision
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

PACKAGE = "apiVersion: goondan.ai/v1\nkind: Package\nmetadata: { name: desk }\n---\n"
SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: Team }
spec: { entryAgent: Agent/coder, agents: [Agent/coder] }
"""


def bundle_of(folder: Path, text: str = f"{TOOL}---\n{AGENT}") -> Bundle:
    return load_bundle(write(folder, {"goondan.yaml": text}))


def settings(tmp_path: Path, **overrides: object) -> Settings:
    return Settings.load(state_root=tmp_path / "state", **overrides)


def make_directory(tmp_path: Path, workspace: str) -> Path:
    directory = tmp_path / "state" / "workspaces" / workspace / "instances" / "a" / "workspace"
    directory.mkdir(parents=True)
    return directory.parents[1]


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def found(bundle: Bundle, tmp_path: Path, redis: fakeredis.FakeRedis) -> EarlierWorkspace:
    earlier = earlier_workspace(bundle, settings(tmp_path), redis)
    assert earlier is not None
    return earlier


def test_no_workspace_is_found_without_earlier_version(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    assert earlier_workspace(bundle_of(tmp_path / "desk"), settings(tmp_path), redis) is None


def test_earlier_files_show_place_and_remedy(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    folder = make_directory(tmp_path, "default")

    earlier = found(bundle_of(tmp_path / "desk"), tmp_path, redis)

    assert (earlier.name, earlier.is_past) == ("default", False)
    assert f"directories of instances in {folder} (1)" in earlier.message
    assert "--workspace default or set GOONDAN_WORKSPACE=default" in earlier.remedy
    assert "a Package 'default'" in earlier.remedy


def test_records_in_redis_are_found_without_files(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    Instances(redis, Keys()).spawn("coder", "a", workspace="default", owner=("client", "x"))
    ActiveRevision(redis, Keys(), "default").begin("git:0")

    assert found(bundle_of(tmp_path / "desk"), tmp_path, redis).found == (
        "records of instances in Redis (1) and the record of its active revision in Redis"
    )


def test_swarm_names_earlier_workspace_without_package(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    make_directory(tmp_path, "%54eam")

    earlier = found(bundle_of(tmp_path / "desk", f"{TOOL}---\n{AGENT}{SWARM}"), tmp_path, redis)

    assert earlier.name == "Team"
    assert "a Package" not in earlier.remedy.partition(".")[0]


def test_second_swarm_leaves_workspace_of_folder_behind(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    bundle = bundle_of(tmp_path / "desk", f"{TOOL}---\n{AGENT}{SWARM}{SWARM.replace('Team', 'other')}")
    make_directory(tmp_path, "default")
    make_directory(tmp_path, folder_workspace(tmp_path / "desk"))

    earlier = found(bundle, tmp_path, redis)

    assert (earlier.name, earlier.is_past) == (folder_workspace(tmp_path / "desk"), False)
    make_directory(tmp_path, encoded(bundle.workspace_name()))
    assert found(bundle, tmp_path, redis).is_past


def test_sole_remaining_swarm_leaves_own_workspace_behind(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    own = folder_workspace(tmp_path / "desk", "Team")
    Instances(redis, Keys()).spawn("coder", "a", workspace=own, owner=("client", "x"))

    earlier = found(bundle_of(tmp_path / "desk", f"{TOOL}---\n{AGENT}{SWARM}"), tmp_path, redis)

    assert (earlier.name, earlier.found) == (own, "records of instances in Redis (1)")


def test_earlier_workspace_is_past_once_bundle_has_instances(
    tmp_path: Path, redis: fakeredis.FakeRedis
) -> None:
    bundle = bundle_of(tmp_path / "desk")
    make_directory(tmp_path, "default")
    ActiveRevision(redis, Keys(), bundle.workspace_name()).begin("git:0")
    assert not found(bundle, tmp_path, redis).is_past

    make_directory(tmp_path, bundle.workspace_name())
    assert found(bundle, tmp_path, redis).is_past


def test_named_workspace_has_no_earlier_workspace(tmp_path: Path, redis: fakeredis.FakeRedis) -> None:
    make_directory(tmp_path, "default")
    packaged = bundle_of(tmp_path / "packaged", f"{PACKAGE}{TOOL}---\n{AGENT}")

    named = settings(tmp_path, workspace="default")
    assert earlier_workspace(packaged, settings(tmp_path), redis) is None
    assert earlier_workspace(bundle_of(tmp_path / "desk"), named, redis) is None
    unknown = settings(tmp_path, swarm="none")
    assert earlier_workspace(bundle_of(tmp_path / "desk"), unknown, redis) is None
