"""Directory trees of any depth."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from goondan_tasks.bundle.inventory import bundle_files
from goondan_tasks.machine.trees import remove_tree, walk

LEVELS = 3_000


def make_deep(top: Path, levels: int = LEVELS) -> None:
    """Make a chain of directories with a file in each."""
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for level in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        name = f"d{level % 7}"
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)


def test_tree_of_thousands_of_levels_is_removed(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep")

    remove_tree(tmp_path / "deep")

    assert list(tmp_path.iterdir()) == []


def test_read_only_directories_are_removed_without_following_links(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "kept").touch()
    inner = top / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (inner / "link").symlink_to(outside)
    for directory in (inner, top / "a", top):
        directory.chmod(0o500)

    remove_tree("top", dir_fd=(parent := os.open(tmp_path, os.O_RDONLY)))
    os.close(parent)

    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_irremovable_file_is_error_rest_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "stays").touch()
    (top / "a" / "b" / "goes").touch()
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int) -> None:
        if name == "stays":
            raise PermissionError("not yours")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(OSError, match="not empty"):
        remove_tree(top)

    assert [str(path.relative_to(top)) for path in sorted(top.rglob("*"))] == ["a", "a/stays"]


def test_link_is_no_tree(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(OSError):
        remove_tree(tmp_path / "link")

    assert (tmp_path / "real").is_dir()


def test_deep_tree_is_walked_to_path_limit(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep", 1_200)

    assert sum(len(names) for _, _, names in walk(tmp_path / "deep")) > 1_000
    assert bundle_files(tmp_path / "deep") == []
    remove_tree(tmp_path / "deep")


def test_walk_is_that_of_standard_library(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")

    def found(tree: Iterable[tuple[str, list[str], list[str]]]) -> list[tuple[str, list[str], list[str]]]:
        return sorted((folder, sorted(folders), sorted(names)) for folder, folders, names in tree)

    assert found(walk(tmp_path)) == found(os.walk(tmp_path))
