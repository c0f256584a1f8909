"""Where a bundle lives."""

import os
import re
from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.workspaces import declared_workspace
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.instances.table import encoded
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

PACKAGE = "apiVersion: goondan.ai/v1\nkind: Package\nmetadata: { name: '@me/desk' }\n"
FILES = {"goondan.yaml": f"{TOOL}---\n{AGENT}"}
SWARM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {{ name: {} }}
spec: {{ entryAgent: Agent/coder, agents: [Agent/coder] }}
"""


def workspace_of(path: Path, named: str | None = None, swarm: str | None = None) -> str:
    workspace = load_bundle(path).workspace_name(named, swarm)
    assert named or declared_workspace(path, swarm) == workspace
    return workspace


def with_swarms(folder: Path, *names: str, package: str = "") -> Path:
    swarms = {f"{name}.yaml": SWARM.format(name) for name in names}
    return write(folder, {"goondan.yaml": f"{package}{FILES['goondan.yaml']}", **swarms})


def test_settings_come_before_package_and_that_before_folder(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", FILES)
    packaged = write(tmp_path / "packaged", {"goondan.yaml": f"{PACKAGE}---\n{FILES['goondan.yaml']}"})

    assert (workspace_of(packaged), workspace_of(packaged, "den")) == ("@me/desk", "den")
    assert workspace_of(plain, "den") == "den"
    assert re.fullmatch("plain-[0-9a-f]{8}", workspace_of(plain))


def test_bundles_in_same_named_folders_have_own_workspaces(tmp_path: Path) -> None:
    first, second = (write(tmp_path / place / "my-swarm", FILES) for place in ("a", "b"))

    assert workspace_of(first) != workspace_of(second)
    assert all(workspace_of(one).startswith("my-swarm-") for one in (first, second))


def test_several_swarms_without_package_have_workspace_each(tmp_path: Path) -> None:
    folder = with_swarms(tmp_path / "desk", "day", "Night")
    own = folder_workspace(folder)

    chosen = [workspace_of(folder, swarm=name) for name in ("day", "Night", None)]

    assert chosen == [f"{own}-day", f"{own}-Night", f"{own}-default"]
    assert workspace_of(folder, "den", "day") == "den"


def test_single_or_packaged_swarms_add_no_name(tmp_path: Path) -> None:
    single = with_swarms(tmp_path / "single", "day")
    packaged = with_swarms(tmp_path / "packaged", "day", "night", package=f"{PACKAGE}---\n")

    assert {workspace_of(single, swarm=name) for name in ("day", None)} == {folder_workspace(single)}
    assert {workspace_of(packaged, swarm=name) for name in ("day", "night")} == {"@me/desk"}


def test_all_ways_to_bundle_lead_to_one_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "desk", FILES)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)

    ways = [folder / "goondan.yaml", folder / ".." / "desk", tmp_path / "link", Path(), Path("goondan.yaml")]

    assert {workspace_of(way) for way in ways} == {workspace_of(folder)}


@pytest.mark.parametrize(
    ("name", "start"),
    [("My Swarm.v2", "my-swarm-v2"), ("..x", "x"), ("도구", "bundle"), ("/", "bundle"), ("a" * 99, "a" * 48)],
)
def test_any_folder_name_becomes_valid_directory_name(name: str, start: str) -> None:
    workspace = folder_workspace(Path("/", name))

    assert re.fullmatch(rf"{start}-[0-9a-f]{{8}}", workspace)
    assert encoded(workspace) == workspace


def test_folder_with_undecodable_name_has_workspace_too() -> None:
    assert folder_workspace(Path(os.fsdecode(b"/srv/\xff"))).startswith("bundle-")
