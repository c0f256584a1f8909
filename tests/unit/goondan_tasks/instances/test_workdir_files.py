"""Files of a workdir for readers outside: what is listed and read, and what leads elsewhere."""

import os
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import InstanceFileError
from goondan_tasks.instances import workdir_files
from goondan_tasks.instances.workdir_files import list_files, read_file
from goondan_tasks.machine.trees import remove_tree


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Return a workdir with files, beside a secret to which links lead."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    workdir = tmp_path / "workspaces" / "w" / "instances" / "i" / "workspace"
    (workdir / "notes").mkdir(parents=True)
    (workdir / "a.txt").write_text("0123456789")
    (workdir / "notes" / "ü b").write_text("")
    (workdir / "link").symlink_to(tmp_path / "secret")
    (workdir / "linked").symlink_to(tmp_path / "secrets")
    os.mkfifo(workdir / "pipe")
    return workdir


def test_only_regular_files_are_listed_by_path(workdir: Path) -> None:
    assert [(file.path, file.size) for file in list_files(workdir)] == [("a.txt", 10), ("notes/ü b", 0)]


def test_bottomless_tree_is_listed_to_level_limit(
    workdir: Path,
) -> None:
    folder = os.open(workdir / "notes", os.O_RDONLY)
    for level in range(1_500):
        os.close(os.open(f"file-{level}", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.mkdir("inner", dir_fd=folder)
        above, folder = folder, os.open("inner", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)

    listed = {Path(file.path).name for file in list_files(workdir)}

    assert {name for name in listed if name.startswith("file-")} == {
        f"file-{level}" for level in range(workdir_files.MOST_LEVELS)
    }
    remove_tree(workdir)


def test_file_with_non_text_path_is_omitted(workdir: Path) -> None:
    for path in (b"\xff.txt", b"\xfe/inner.txt"):
        file = Path(os.fsdecode(os.fsencode(workdir) + b"/" + path))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    assert [file.path for file in list_files(workdir)] == ["a.txt", "notes/ü b"]


def test_workdir_that_is_not_there_has_no_files(workdir: Path) -> None:
    assert list_files(workdir.parent / "none") == []


def test_workdir_that_became_link_is_not_listed(workdir: Path, tmp_path: Path) -> None:
    (workdir.parent.parent / "j").symlink_to(tmp_path)

    with pytest.raises(InstanceFileError):
        list_files(workdir.parent.parent / "j" / "secrets")


def test_part_tells_if_earlier_part_shares_file(workdir: Path) -> None:
    first = read_file(workdir, "a.txt", 0, 4)
    with (workdir / "a.txt").open("a") as file:
        file.write("more")
    longer = read_file(workdir, "a.txt", 4, 4)
    (workdir / "new").write_text("A" * 100)
    (workdir / "new").replace(workdir / "a.txt")
    other = read_file(workdir, "a.txt", 4, 4)
    os.truncate(workdir / "a.txt", 50)
    shorter = read_file(workdir, "a.txt", 4, 4)

    assert first.is_of(first)
    assert longer.is_of(first)
    assert not other.is_of(first)
    assert not shorter.is_of(other)


def test_file_is_read_in_parts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir_files, "MOST_BYTES", 4)

    parts = [read_file(workdir, "a.txt", offset, None) for offset in (0, 4, 8, 20)]

    assert [part.data for part in parts] == [b"0123", b"4567", b"89", b""]
    assert [part.next_offset for part in parts] == [4, 8, None, None]
    assert read_file(workdir, "a.txt", 1, 2).data == b"12"


@pytest.mark.parametrize(
    "path",
    [
        "link",
        "linked/key",
        "../../../../../secret",
        "notes/../../workspace/a.txt",
        "/etc/passwd",
        "notes",
        "pipe",
        "none",
        "a.txt/x",
        "",
        "a\0b",
        "x" * 5_000,
        "\ud800",
    ],
)
def test_path_naming_no_file_in_workdir_is_refused(workdir: Path, path: str) -> None:
    with pytest.raises(InstanceFileError):
        read_file(workdir, path, 0, None)
