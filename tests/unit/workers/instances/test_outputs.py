"""Outputs in files."""

import asyncio
import json
import os
import resource
import stat
import time
from pathlib import Path

import pytest

from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.errors import OutputGoneError, OutputNotStoredError, ToolInputValidationError
from goondan_tasks.contract.messages import wall_clock
from tests.unit.workers.default_threads import take_default_threads_away
from workers.concurrency.event_loop import drive
from workers.instances.outputs import Outputs, StoredOutput, read_part
from workers.instances.workdirs import InstanceWorkdirs, Workdirs

TEXT = "한글 é 🙂" * 100_000
DATA = json.dumps(TEXT, ensure_ascii=False).encode()


def outputs(root: Path, keep_seconds: float = 60) -> Outputs:
    return Outputs(InstanceWorkdirs(Workdirs(root, "shop")), 262_144, keep_seconds)


def run(call_id: str = "0b7c7a1e-0000-5000-8000-000000000001") -> Run:
    call = new_call("coder", "bash__exec", {}, {"instance_key": "a"})
    return Run(call_id, call, "w", 1, 0, wall_clock)


def store(to: Outputs, data: bytes = DATA, of: Run | None = None) -> StoredOutput:
    ended = drive(to.store(of or run(), data))
    assert ended is not None
    return ended[0]


def workdir(root: Path) -> Path:
    return Workdirs(root, "shop").open("a")


def folder(root: Path) -> Path:
    return workdir(root) / ".outputs"


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def test_output_is_private_workdir_file_with_preview(tmp_path: Path) -> None:
    stored = store(outputs(tmp_path))
    file = workdir(tmp_path) / stored.path
    assert file.read_bytes() == DATA
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names(folder(tmp_path)) == {file.name}
    assert stored.size == len(DATA)
    assert DATA.decode().startswith(stored.preview)
    assert 2000 < len(stored.preview.encode()) <= 2048


def test_output_stored_on_event_loop_is_written_too(tmp_path: Path) -> None:
    async def stored_on_loop() -> StoredOutput:
        take_default_threads_away()
        return await outputs(tmp_path).store(run(), DATA)

    stored = asyncio.run(stored_on_loop())
    assert (workdir(tmp_path) / stored.path).read_bytes() == DATA


def test_each_run_has_its_own_file(tmp_path: Path) -> None:
    first, second = store(outputs(tmp_path)), store(outputs(tmp_path))
    assert first.path != second.path


@pytest.mark.parametrize("call_id", ["../../x", "/etc/passwd", "x" * 200, "한" * 66, ".", "a b"])
def test_no_id_leads_elsewhere(tmp_path: Path, call_id: str) -> None:
    stored = store(outputs(tmp_path), of=run(call_id))
    assert (workdir(tmp_path) / stored.path).parent == folder(tmp_path)
    assert read_part(workdir(tmp_path), stored.path, offset=0, limit=10**9) == (DATA, len(DATA))


@pytest.mark.parametrize("inside", [True, False])
def test_link_in_place_of_folder_is_error(tmp_path: Path, inside: bool) -> None:
    elsewhere = (workdir(tmp_path) if inside else tmp_path) / "elsewhere"
    elsewhere.mkdir()
    folder(tmp_path).symlink_to(elsewhere)
    with pytest.raises(OutputNotStoredError, match="could not be written"):
        store(outputs(tmp_path))
    assert names(elsewhere) == set()


def test_file_in_place_of_folder_is_error(tmp_path: Path) -> None:
    folder(tmp_path).write_text("mine", encoding="ascii")
    with pytest.raises(OutputNotStoredError, match="could not be written"):
        store(outputs(tmp_path))


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OutputNotStoredError, match=r"succeeded, but .*File too large"):
            store(outputs(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(folder(tmp_path)) == set()


def test_writing_output_removes_own_old_files(tmp_path: Path) -> None:
    old, young = store(outputs(tmp_path)), store(outputs(tmp_path))
    strange = folder(tmp_path) / "notes.txt"
    leftover = folder(tmp_path) / ".0123456789abcdef.tmp"
    for file in (strange, leftover):
        file.write_text("x", encoding="ascii")
    for file in (strange, leftover, workdir(tmp_path) / old.path):
        os.utime(file, (0, time.time() - 120))
    new = store(outputs(tmp_path, keep_seconds=60))
    kept = {Path(stored.path).name for stored in (young, new)}
    assert names(folder(tmp_path)) == {*kept, "notes.txt"}


def test_output_is_read_in_parts(tmp_path: Path) -> None:
    path = store(outputs(tmp_path)).path
    parts = [
        read_part(workdir(tmp_path), path, offset=at, limit=99_999)[0] for at in range(0, len(DATA), 99_999)
    ]
    assert b"".join(parts) == DATA
    assert read_part(workdir(tmp_path), path, offset=len(DATA), limit=1) == (b"", len(DATA))


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        ".outputs/notes.txt",
        ".outputs/../notes.txt",
        ".outputs/x-0123456789abcdef.json/../../notes.txt",
        "/etc/passwd",
        ".outputs/\0-0123456789abcdef.json",
        "",
        ".outputs",
        "./.outputs/x-0123456789abcdef.json",
        ".outputs/x-0123456789abcdef.json\n",
    ],
)
def test_only_outputs_can_be_read(tmp_path: Path, path: str) -> None:
    (workdir(tmp_path) / "notes.txt").write_text("private", encoding="ascii")
    store(outputs(tmp_path))
    with pytest.raises(ToolInputValidationError, match="is not the path of a call's output"):
        read_part(workdir(tmp_path), path, offset=0, limit=10)


def test_link_in_place_of_output_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret", encoding="ascii")
    file = workdir(tmp_path) / store(outputs(tmp_path)).path
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        read_part(workdir(tmp_path), f".outputs/{file.name}", offset=0, limit=10)


def test_link_in_place_of_workdir_is_not_followed(tmp_path: Path) -> None:
    path = store(outputs(tmp_path)).path
    place = workdir(tmp_path)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Not a directory"):
        read_part(place, path, offset=0, limit=10)


def test_missing_output_or_excessive_offset_is_reported(tmp_path: Path) -> None:
    path = store(outputs(tmp_path)).path
    with pytest.raises(ToolInputValidationError, match="past the end"):
        read_part(workdir(tmp_path), path, offset=len(DATA) + 1, limit=1)
    (workdir(tmp_path) / path).unlink()
    with pytest.raises(OutputGoneError, match=path.replace(".", r"\.")):
        read_part(workdir(tmp_path), path, offset=0, limit=1)
