"""Files that are written as a whole, or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from goondan_tasks.machine.atomic_file import write_whole


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return what is written to the disk."""
    synced: list[Path] = []
    fsync: Callable[[int], None] = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return synced


def test_new_content_replaces_old_except_in_links(tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.write_bytes(b"old")
    link.hardlink_to(place)
    write_whole(place, b"new")
    assert (place.read_bytes(), link.read_bytes()) == (b"new", b"old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "place"]


def test_path_may_be_relative_to_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        write_whole("inner/place", b"new", directory=directory, is_durable=True)
        write_whole("place", b"new", directory=directory, is_durable=True)
    finally:
        os.close(directory)
    assert (tmp_path / "inner/place").read_bytes() == (tmp_path / "place").read_bytes() == b"new"


@pytest.mark.parametrize(("mode", "wanted"), [(0o600, 0o600), (0o666, 0o666), (None, 0o640)])
def test_umask_decides_only_where_no_mode_is_given(tmp_path: Path, mode: int | None, wanted: int) -> None:
    before = os.umask(0o026)
    try:
        write_whole(tmp_path / "place", b"new", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "place").stat().st_mode & 0o777 == wanted


def test_write_without_replacing_keeps_old_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "place", b"old", replaces=False)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "place", b"new", replaces=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_only_durable_write_syncs_file_and_directory(tmp_path: Path, synced: list[Path]) -> None:
    write_whole(tmp_path / "fleeting", b"new")
    assert synced == []
    write_whole(tmp_path / "durable", b"new", is_durable=True)
    [file, directory] = synced
    assert (file.parent, file.suffix, directory) == (tmp_path, ".tmp", tmp_path)


def test_failed_write_leaves_only_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "place").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "place", b"new", is_durable=True)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
