import errno
import os
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import ToolError, ToolInputValidationError
from tests.unit.workers.builtin.conftest import CallTool
from workers.builtin import file_system


@pytest.mark.requirement("builtin.file-system.read", "context.workdir.default-of-file-tools")
def test_read_returns_path_size_and_content(call: CallTool, workdir: Path) -> None:
    (workdir / "a.txt").write_text("héllo\n")

    result = call("file-system__read", path="a.txt")

    expected = {"path": str(workdir / "a.txt"), "size": 7, "truncated": False, "content": "héllo\n"}
    assert result == expected
    assert list(result) == list(expected)
    assert call("file-system__read", path=str(workdir / "a.txt")) == expected


@pytest.mark.requirement("builtin.file-system.read")
def test_read_stops_after_100000_bytes_by_default(call: CallTool, workdir: Path) -> None:
    (workdir / "long.txt").write_text("x" * 100_001)

    by_default = call("file-system__read", path="long.txt")
    told = call("file-system__read", path="long.txt", maxBytes=100_001)

    assert (len(by_default["content"]), by_default["truncated"], by_default["size"]) == (
        100_000,
        True,
        100_001,
    )
    assert (len(told["content"]), told["truncated"]) == (100_001, False)


@pytest.mark.parametrize("limit", range(1, 10))
def test_read_never_splits_character(call: CallTool, workdir: Path, limit: int) -> None:
    (workdir / "a.txt").write_text("é한🙂")

    result = call("file-system__read", path="a.txt", maxBytes=limit)

    assert "é한🙂".startswith(result["content"])
    assert result["truncated"] == (limit < 9)


def test_read_shows_undecodable_bytes_as_replacement_characters(call: CallTool, workdir: Path) -> None:
    (workdir / "a.bin").write_bytes(b"\xff\0a\xc3")

    assert call("file-system__read", path="a.bin")["content"] == "\ufffd\0a\ufffd"


def test_read_of_huge_file_takes_only_its_beginning(call: CallTool, workdir: Path) -> None:
    with (workdir / "huge").open("wb") as file:
        file.truncate(1 << 40)

    result = call("file-system__read", path="huge", maxBytes=1 << 60)

    assert (result["size"], result["truncated"]) == (1 << 40, True)
    assert len(result["content"]) == file_system.MAX_READ_BYTES


@pytest.mark.parametrize("limit", [0, -1, 1.5, "9", True])
def test_read_refuses_limit_that_is_none(call: CallTool, workdir: Path, limit: object) -> None:
    (workdir / "a.txt").write_text("x")

    with pytest.raises(ToolInputValidationError, match="maxBytes"):
        call("file-system__read", path="a.txt", maxBytes=limit)


def test_read_of_missing_file_names_given_path(call: CallTool) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        call("file-system__read", path="a/b/c.txt")

    assert str(caught.value) == "[Errno 2] No such file or directory: 'a/b/c.txt'"


@pytest.mark.requirement("builtin.file-system.write", "context.workdir.default-of-file-tools")
def test_write_makes_file_and_its_directories(call: CallTool, workdir: Path) -> None:
    result = call("file-system__write", path="a/b/c.txt", content="é\n")

    expected = {"path": str(workdir / "a/b/c.txt"), "size": 3, "written": True, "append": False}
    assert result == expected
    assert list(result) == list(expected)
    assert (workdir / "a/b/c.txt").read_text() == "é\n"


def test_write_replaces_or_appends(call: CallTool, workdir: Path) -> None:
    call("file-system__write", path="a.txt", content="a long first line")
    call("file-system__write", path="a.txt", content="one\n")
    result = call("file-system__write", path="a.txt", content="two\n", append=True)

    assert (workdir / "a.txt").read_text() == "one\ntwo\n"
    assert (result["size"], result["append"]) == (8, True)
    assert [file.name for file in workdir.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("append", [False, True])
def test_empty_content_can_be_written(call: CallTool, workdir: Path, append: bool) -> None:
    result = call("file-system__write", path="empty.txt", content="", append=append)

    assert result["size"] == 0
    assert (workdir / "empty.txt").read_bytes() == b""


def test_content_is_written_unchanged(call: CallTool, workdir: Path) -> None:
    call("file-system__write", path="a.txt", content="nul\0 crlf\r\n 🙂")

    assert (workdir / "a.txt").read_bytes() == b"nul\0 crlf\r\n \xf0\x9f\x99\x82"


def test_replacing_keeps_mode_and_spares_hard_links(call: CallTool, workdir: Path) -> None:
    outside = workdir.parent / "outside" / "secret.txt"
    os.link(outside, workdir / "same.txt")
    outside.chmod(0o750)

    call("file-system__write", path="same.txt", content="mine")

    assert outside.read_text() == "secret"
    assert (workdir / "same.txt").read_text() == "mine"
    assert (workdir / "same.txt").stat().st_mode & 0o777 == 0o750


def test_failed_write_leaves_only_old_content(
    call: CallTool, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "a.txt").write_text("old")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)

    with pytest.raises(OSError, match=r"No space left on device: 'a\.txt'"):
        call("file-system__write", path="a.txt", content="new")

    assert (workdir / "a.txt").read_text() == "old"
    assert [file.name for file in workdir.iterdir()] == ["a.txt"]


def test_list_shows_files_and_directories_sorted_by_path(call: CallTool, workdir: Path) -> None:
    (workdir / "b").mkdir()
    (workdir / "b" / "z.txt").write_text("12345")
    (workdir / "a.txt").write_text("")
    (workdir / "link").symlink_to("a.txt")
    os.mkfifo(workdir / "fifo")

    flat = call("file-system__list")
    deep = call("file-system__list", path="b", recursive=True)

    assert flat == {
        "path": str(workdir),
        "recursive": False,
        "count": 2,
        "entries": [
            {"name": "a.txt", "path": "a.txt", "type": "file", "size": 0},
            {"name": "b", "path": "b", "type": "dir"},
        ],
    }
    assert list(flat) == ["path", "recursive", "count", "entries"]
    assert deep["entries"] == [{"name": "z.txt", "path": "b/z.txt", "type": "file", "size": 5}]


def test_recursive_list_leaves_out_unwanted_kinds(call: CallTool, workdir: Path) -> None:
    (workdir / "a" / "b").mkdir(parents=True)
    (workdir / "a" / "b" / "c.txt").write_text("x")
    (workdir / "a" / "loop").symlink_to("..")

    def paths(**args: bool) -> list[str]:
        return [entry["path"] for entry in call("file-system__list", recursive=True, **args)["entries"]]

    assert paths() == ["a", "a/b", "a/b/c.txt"]
    assert paths(includeDirs=False) == ["a/b/c.txt"]
    assert paths(includeFiles=False) == ["a", "a/b"]
    assert paths(includeFiles=False, includeDirs=False) == []


def test_listing_too_deep_tree_is_error(call: CallTool, workdir: Path) -> None:
    deepest = workdir.joinpath(*["d"] * file_system.MAX_DEPTH)
    deepest.mkdir(parents=True)

    assert call("file-system__list", recursive=True)["count"] == file_system.MAX_DEPTH
    (deepest / "d").mkdir()
    with pytest.raises(ToolError, match="more than 100 levels down"):
        call("file-system__list", recursive=True)
    assert call("file-system__list", path="d", recursive=True)["count"] == file_system.MAX_DEPTH


def test_listing_too_many_entries_is_error(
    call: CallTool, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "MAX_ENTRIES", 3)
    for number in range(4):
        (workdir / str(number)).touch()

    with pytest.raises(ToolError, match="more than 3 entries"):
        call("file-system__list")


def test_list_shows_names_that_are_no_text(call: CallTool, workdir: Path) -> None:
    Path(os.fsdecode(os.fsencode(workdir) + b"/caf\xe9")).mkdir()

    assert call("file-system__list")["entries"] == [{"name": "caf\ufffd", "path": "caf\ufffd", "type": "dir"}]


def test_list_of_missing_directory_or_file_is_oserror(call: CallTool, workdir: Path) -> None:
    (workdir / "a.txt").touch()

    with pytest.raises(FileNotFoundError, match="'nowhere'"):
        call("file-system__list", path="nowhere")
    with pytest.raises(NotADirectoryError, match=r"'a\.txt'"):
        call("file-system__list", path="a.txt", recursive=True)


def test_mkdir_makes_parents_and_accepts_existing_directory(call: CallTool, workdir: Path) -> None:
    expected = {"path": str(workdir / "a/b"), "created": True, "recursive": True}

    assert call("file-system__mkdir", path="a/b") == expected
    assert call("file-system__mkdir", path="a/b") == expected
    assert (workdir / "a" / "b").is_dir()


def test_nonrecursive_mkdir_makes_only_one_new_directory(call: CallTool, workdir: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'a/b'"):
        call("file-system__mkdir", path="a/b", recursive=False)

    assert call("file-system__mkdir", path="a", recursive=False)["created"]
    with pytest.raises(FileExistsError, match="'a'"):
        call("file-system__mkdir", path="a", recursive=False)


def test_mkdir_over_file_is_oserror(call: CallTool, workdir: Path) -> None:
    (workdir / "a").touch()

    with pytest.raises(NotADirectoryError, match="'a/b'"):
        call("file-system__mkdir", path="a/b")
