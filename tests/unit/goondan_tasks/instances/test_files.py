"""The files of instances, and how they go."""

import os
from pathlib import Path

import pytest

from goondan_tasks.instances.files import InstanceFiles
from goondan_tasks.instances.table import InstanceDirectory

TOKEN = "0" * 32
DIRECTORY = InstanceDirectory("shop", "a")


@pytest.fixture
def files(tmp_path: Path) -> InstanceFiles:
    return InstanceFiles(tmp_path / "root")


def make(files: InstanceFiles, text: str = "x") -> Path:
    file = files.path(DIRECTORY) / "workspace" / "deep" / "file"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_home_is_set_aside_atomically_then_removed(files: InstanceFiles) -> None:
    make(files)
    assert files.set_aside(DIRECTORY, TOKEN)
    assert not files.is_there(DIRECTORY)
    assert files.left_aside("shop") == [(DIRECTORY, TOKEN)]
    assert files.directories("shop") == []
    assert files.remove(DIRECTORY, TOKEN)
    assert list(files.path(DIRECTORY).parent.iterdir()) == []


def test_files_set_aside_can_be_put_back(files: InstanceFiles) -> None:
    file = make(files, "mine")
    files.set_aside(DIRECTORY, TOKEN)
    assert files.give_back(DIRECTORY, TOKEN)
    assert file.read_text(encoding="utf-8") == "mine"
    assert files.give_back(DIRECTORY, TOKEN)


def test_empty_new_home_gives_way_to_old(files: InstanceFiles) -> None:
    file = make(files, "mine")
    files.set_aside(DIRECTORY, TOKEN)
    (files.path(DIRECTORY) / "workspace").mkdir(parents=True)
    assert files.give_back(DIRECTORY, TOKEN)
    assert file.read_text(encoding="utf-8") == "mine"


def test_filled_new_home_stays_beside_old(files: InstanceFiles) -> None:
    make(files, "old")
    files.set_aside(DIRECTORY, TOKEN)
    new = make(files, "new")
    assert not files.give_back(DIRECTORY, TOKEN)
    assert new.read_text(encoding="utf-8") == "new"
    kept = files.path(DIRECTORY).with_name(f".kept-{TOKEN}-a") / "workspace" / "deep" / "file"
    assert kept.read_text(encoding="utf-8") == "old"
    assert files.left_aside("shop") == []


@pytest.mark.parametrize("workspace", ["shop", "nowhere"])
def test_missing_instance_directory_is_no_error(files: InstanceFiles, workspace: str) -> None:
    directory = InstanceDirectory(workspace, "a")
    assert not files.set_aside(directory, TOKEN)
    assert files.give_back(directory, TOKEN)
    assert files.remove(directory, TOKEN)
    assert files.directories(workspace) == []
    assert files.root_id is None
    assert files.newest(directory) == 0


def test_links_are_taken_away_and_never_followed(files: InstanceFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x", encoding="utf-8")
    file = make(files)
    (file.parent / "folder").symlink_to(outside)
    (file.parent / "file-link").symlink_to(outside / "precious")
    files.set_aside(DIRECTORY, TOKEN)
    assert files.remove(DIRECTORY, TOKEN)
    assert (outside / "precious").exists()


def test_home_that_is_link_goes_as_link(files: InstanceFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    files.path(DIRECTORY).parent.mkdir(parents=True)
    files.path(DIRECTORY).symlink_to(outside)
    files.set_aside(DIRECTORY, TOKEN)
    assert files.remove(DIRECTORY, TOKEN)
    assert outside.is_dir()
    assert not files.is_there(DIRECTORY)


@pytest.mark.parametrize("part", ["workspaces", "workspaces/shop", "workspaces/shop/instances"])
def test_link_on_way_to_homes_is_refused(files: InstanceFiles, tmp_path: Path, part: str) -> None:
    make(files)
    place = files.state_root / part
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="instances"):
        files.set_aside(DIRECTORY, TOKEN)
    assert files.path(DIRECTORY).is_dir()


def test_read_only_directories_are_removed_too(files: InstanceFiles) -> None:
    file = make(files)
    (file.parent / "locked").mkdir()
    (file.parent / "locked" / "file").write_text("x", encoding="utf-8")
    (file.parent / "locked").chmod(0o000)
    file.parent.chmod(0o500)
    files.set_aside(DIRECTORY, TOKEN)
    assert files.remove(DIRECTORY, TOKEN)
    assert files.left_aside("shop") == []


def test_newest_change_is_found_however_deep(files: InstanceFiles) -> None:
    file = make(files)
    for path in [file, *file.parents[:4]]:
        os.utime(path, (1000, 1000))
    assert files.newest(DIRECTORY) == 1000
    os.utime(file, (2000, 2000))
    assert files.newest(DIRECTORY) == 2000
