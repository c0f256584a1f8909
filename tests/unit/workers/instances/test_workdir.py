"""Where instances work."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.agents.homes import encoded
from goondan_tasks.errors import ToolError
from workers.instances.workdir import Workdirs, root_id

keys = st.text(max_size=300)


@given(keys, keys)
def test_two_keys_never_share_a_directory(one: str, other: str) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)


@given(keys)
def test_a_directory_name_is_one_plain_component(key: str) -> None:
    name = encoded(key)
    assert 0 < len(name) <= 150
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%ABCDEF")


def test_keys_that_differ_in_case_differ_on_every_file_system() -> None:
    assert encoded("Issue").lower() != encoded("issue").lower()


@pytest.mark.requirement("context.workdir")
@pytest.mark.parametrize(
    "key", ["issue-42", "a/b", "a-b", "..", "../../etc", "/etc", "", ".", "\0", "한글", "x" * 999]
)
def test_a_workdir_is_made_on_first_use_inside_the_state_root(tmp_path: Path, key: str) -> None:
    workdir = Workdirs(tmp_path, "shop").open(key)
    assert workdir.is_dir()
    assert workdir.resolve().is_relative_to(tmp_path.resolve() / "workspaces" / "shop" / "instances")
    assert workdir.name == "workspace"


@pytest.mark.requirement("context.workdir.of-the-instance")
def test_an_instance_has_one_workdir_and_no_other_has_it(tmp_path: Path) -> None:
    workdirs = Workdirs(tmp_path, "shop")
    assert workdirs.open("a") == workdirs.open("a")
    assert workdirs.open("a") != workdirs.open("b")


def test_a_workdir_is_private(tmp_path: Path) -> None:
    assert stat.S_IMODE(Workdirs(tmp_path, "shop").open("a").stat().st_mode) == 0o700


@pytest.mark.parametrize("part", ["", "workspace"])
def test_a_link_in_the_place_of_a_workdir_is_refused(tmp_path: Path, part: str) -> None:
    home = tmp_path / "workspaces" / "shop" / "instances" / "a"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "workspace").mkdir(parents=True)
    place = home / part if part else home
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    with pytest.raises(ToolError, match="link"):
        Workdirs(tmp_path, "shop").open("a")


def test_a_state_root_keeps_its_id(tmp_path: Path) -> None:
    assert root_id(tmp_path / "root") == root_id(tmp_path / "root")
    assert root_id(tmp_path / "root") != root_id(tmp_path / "other")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["root-id"]
