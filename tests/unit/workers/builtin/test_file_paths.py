"""The paths that ``file-system`` takes: inside the workdir, whatever others do to it meanwhile."""

import dataclasses
import errno
import os
import socket
from pathlib import Path

import pytest

from goondan_tasks.authoring.tool_api import JsonObject, ToolContext
from goondan_tasks.contract.errors import PathOutsideWorkdirError, ToolError
from goondan_tasks.machine.inner_path import InnerPath
from tests.unit.workers.builtin.conftest import CallTool
from workers.builtin import file_system
from workers.instances.paths import locate
from workers.instances.workdirs import Workdirs

OUTSIDE = [
    "..",
    "../outside/secret.txt",
    "a/../../outside",
    "/etc/passwd",
    "/",
    "link/secret.txt",
    "link",
    "up/x",
]


@pytest.fixture
def links(workdir: Path) -> None:
    (workdir / "link").symlink_to("../outside")
    (workdir / "up").symlink_to("..")


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("export", ["read", "write", "list", "mkdir"])
def test_paths_that_lead_outside_are_refused(call: CallTool, workdir: Path, export: str, path: str) -> None:
    args = {"path": path, "content": "bad"} if export == "write" else {"path": path}

    with pytest.raises(PathOutsideWorkdirError, match="outside"):
        call(f"file-system__{export}", **args)

    assert [file.name for file in (workdir.parent / "outside").iterdir()] == ["secret.txt"]
    assert (workdir.parent / "outside" / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("path", ["nul\0", "\udfff\ud800"])
@pytest.mark.parametrize("export", ["read", "list", "mkdir"])
def test_names_that_no_file_can_have_are_refused(call: CallTool, export: str, path: str) -> None:
    with pytest.raises(ToolError):
        call(f"file-system__{export}", path=path)


def test_too_long_name_is_oserror(call: CallTool) -> None:
    with pytest.raises(OSError, match="name too long") as caught:
        call("file-system__write", path="x" * 300, content="")

    assert caught.value.errno == errno.ENAMETOOLONG


def test_links_inside_workdir_are_followed(call: CallTool, workdir: Path) -> None:
    (workdir / "real").mkdir()
    (workdir / "short").symlink_to("real")
    (workdir / "absolute").symlink_to(workdir / "real" / "a.txt")

    call("file-system__write", path="short/a.txt", content="one")
    call("file-system__write", path="absolute", content="two")

    assert (workdir / "real" / "a.txt").read_text() == "two"
    assert (workdir / "absolute").is_symlink()
    assert call("file-system__read", path="short/../real/a.txt")["content"] == "two"


def test_workdir_itself_may_be_reached_over_link(call: CallTool, workdir: Path) -> None:
    workdir.rename(workdir.with_name("moved"))
    workdir.symlink_to("moved")

    call("file-system__write", path="a.txt", content="here")

    assert (workdir.parent / "moved" / "a.txt").read_text() == "here"


def test_links_in_circle_are_oserror(call: CallTool, workdir: Path) -> None:
    (workdir / "a").symlink_to("b")
    (workdir / "b").symlink_to("a")

    with pytest.raises(OSError, match="symbolic links"):
        call("file-system__read", path="a")


def swap_for_a_link(place: Path) -> None:
    place.rename(place.with_name("was"))
    place.symlink_to("../outside")


@pytest.mark.parametrize("export", ["read", "write", "list", "mkdir"])
def test_link_replacing_directory_after_check_is_not_followed(
    call: CallTool, workdir: Path, monkeypatch: pytest.MonkeyPatch, export: str
) -> None:
    (workdir / "sub").mkdir()
    (workdir / "sub" / "secret.txt").write_text("harmless")

    def locate_and_swap(directory: Path, path: str) -> InnerPath:
        place = locate(directory, path)
        swap_for_a_link(workdir / "sub")
        return place

    monkeypatch.setattr(file_system, "locate", locate_and_swap)
    path = {"list": "sub", "mkdir": "sub/new"}.get(export, "sub/secret.txt")
    args = {"path": path, "content": "bad"} if export == "write" else {"path": path}

    with pytest.raises(OSError, match="Not a directory"):
        call(f"file-system__{export}", **args)

    assert [file.name for file in (workdir.parent / "outside").iterdir()] == ["secret.txt"]
    assert (workdir.parent / "outside" / "secret.txt").read_text() == "secret"


class TestWorkdirInsideAnotherInstances:
    """Its programs may replace it."""

    @pytest.fixture
    def workdir(self, workdir: Path) -> Path:
        outside = workdir.parent / "outside"
        host = Workdirs(workdir.parent / "root", "shop").open("host")
        (host.parent / "outside").symlink_to(outside)
        guests = Workdirs(workdir.parent / "root", "shop").open("guest", "host/workspace/sub")
        (guests / "secret.txt").write_text("harmless")
        return guests

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        return tmp_path / "outside"

    @pytest.mark.parametrize("export", ["read", "write", "list", "mkdir"])
    def test_link_in_its_place_is_refused(
        self, call: CallTool, workdir: Path, outside: Path, export: str
    ) -> None:
        swap_for_a_link(workdir)

        with pytest.raises(PathOutsideWorkdirError):
            call(f"file-system__{export}", **arguments(export))

        assert_untouched(outside)

    @pytest.mark.parametrize("export", ["read", "write", "list", "mkdir"])
    def test_link_replacing_workdir_after_check_is_not_followed(
        self, call: CallTool, workdir: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, export: str
    ) -> None:
        def locate_and_swap(directory: Path, path: str) -> InnerPath:
            place = locate(directory, path)
            swap_for_a_link(workdir)
            return place

        monkeypatch.setattr(file_system, "locate", locate_and_swap)

        with pytest.raises(OSError, match="Not a directory"):
            call(f"file-system__{export}", **arguments(export))

        assert_untouched(outside)

    def test_state_root_may_be_reached_over_link(self, workdir: Path, context: ToolContext) -> None:
        root = workdir.parents[5]
        (root.parent / "mounted").symlink_to(root)
        mounted = Workdirs(root.parent / "mounted", "shop").open("guest", "host/workspace/sub")

        result = file_system.read(dataclasses.replace(context, workdir=mounted), {"path": "secret.txt"})

        assert result["content"] == "harmless"
        assert result["path"] == str(mounted / "secret.txt")


def arguments(export: str) -> JsonObject:
    path = {"list": ".", "mkdir": "new"}.get(export, "secret.txt")
    return {"path": path, "content": "bad"} if export == "write" else {"path": path}


def assert_untouched(outside: Path) -> None:
    assert [file.name for file in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("export", ["read", "write"])
def test_link_replacing_file_after_check_is_not_followed(
    call: CallTool, workdir: Path, monkeypatch: pytest.MonkeyPatch, export: str
) -> None:
    (workdir / "a.txt").write_text("harmless")

    def locate_and_swap(directory: Path, path: str) -> InnerPath:
        place = locate(directory, path)
        (workdir / "a.txt").unlink()
        (workdir / "a.txt").symlink_to("../outside/secret.txt")
        return place

    monkeypatch.setattr(file_system, "locate", locate_and_swap)
    args = {"path": "a.txt", "content": "bad", "append": True} if export == "write" else {"path": "a.txt"}

    with pytest.raises(OSError, match="symbolic links"):
        call(f"file-system__{export}", **args)

    assert (workdir.parent / "outside" / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("export", ["read", "write"])
def test_special_files_are_refused_without_waiting(call: CallTool, workdir: Path, export: str) -> None:
    os.mkfifo(workdir / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(workdir / "socket"))
    listener.close()

    for path in ("fifo", "socket"):
        args = {"path": path, "content": "x"} if export == "write" else {"path": path}
        with pytest.raises(ToolError, match="Not a regular file"):
            call(f"file-system__{export}", **args)


@pytest.mark.parametrize("path", [".", "sub"])
@pytest.mark.parametrize("export", ["read", "write"])
def test_directory_is_not_file(call: CallTool, workdir: Path, export: str, path: str) -> None:
    (workdir / "sub").mkdir()
    args = {"path": path, "content": "x"} if export == "write" else {"path": path}

    with pytest.raises(IsADirectoryError):
        call(f"file-system__{export}", **args)
