"""Importing entry files: each once, and one that hangs holds nobody for longer than that may take."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from goondan_tasks.authoring.entry import EntryError, handle_in, handlers_in
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ToolCancelledError, ToolTimeoutError
from tests.waiting import wait_until
from workers.cancellation import Cancellation
from workers.tools.entry_files import EntryFiles

SLOW = """
import pathlib, time
here = pathlib.Path(__file__).parent
with (here / "begun").open("a") as file:
    file.write("x")
while not (here / "go").exists():
    time.sleep(0.01)
handlers = {"work": lambda ctx, input: None}
handle = print
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    yield path
    (tmp_path / "go").touch()


def called(
    files: EntryFiles, path: Path, seconds: float, cancellation: Cancellation | None = None
) -> Mapping[str, ToolHandler]:
    return files.load_for_call(
        path, handlers_in, seconds=seconds, cancellation=cancellation or Cancellation()
    )


def test_file_that_hangs_is_waited_for_once(slow: Path) -> None:
    files = EntryFiles()
    with pytest.raises(ToolTimeoutError, match=r"slow.py: importing the file does not end within 0.2 s"):
        called(files, slow, 0.2)
    at = monotonic()
    for _ in range(500):
        with pytest.raises(ToolTimeoutError):
            called(files, slow, 0.2)
    assert monotonic() - at < 50, "at once; 100 s if each of them waited"
    assert (slow.parent / "begun").read_text() == "x"


def test_file_too_slow_for_call_serves_next(slow: Path) -> None:
    files = EntryFiles()
    with pytest.raises(ToolTimeoutError):
        called(files, slow, 0)
    (slow.parent / "go").touch()
    assert list(called(files, slow, 10)) == ["work"]
    assert (slow.parent / "begun").read_text() == "x"


def test_cancel_ends_waiting(slow: Path) -> None:
    cancellation = Cancellation()
    wanted = ToolCancelledError("enough")

    def cancel() -> None:
        wait_until((slow.parent / "begun").exists)
        cancellation.set(wanted)

    threading.Thread(target=cancel).start()
    with pytest.raises(ToolCancelledError) as ended:
        called(EntryFiles(), slow, 60, cancellation)
    assert ended.value is wanted


def test_entry_file_is_run_once_for_all_threads(slow: Path) -> None:
    files, others = EntryFiles(), EntryFiles()
    with ThreadPoolExecutor(8) as threads:
        asked: list[Any] = [threads.submit(called, files, slow, 20) for _ in range(3)]
        asked += [threads.submit(files.load, slow, handle_in) for _ in range(3)]
        asked += [threads.submit(called, others, slow, 20) for _ in range(2)]
        wait_until((slow.parent / "begun").exists)
        (slow.parent / "go").touch()
        found = [one.result(20) for one in asked]

    assert found == [found[0]] * 3 + [print] * 3 + [found[0]] * 2
    assert (slow.parent / "begun").read_text() == "x"


def test_edited_file_stays_as_loaded_for_everyone(tmp_path: Path) -> None:
    files, path = EntryFiles(), tmp_path / "both.py"
    path.write_text("import time\nhandlers = {'now': time.time}\nhandle = print\n")
    before = files.load(path, handlers_in)
    path.write_text("handlers = {}\n")

    assert called(files, path, 10) is before
    assert files.load(path, handle_in) is print


@pytest.mark.parametrize("broken", ["1 / 0\n", "import sys\nsys.exit(3)\n", "hands = {}\n", "def (:\n"])
def test_file_that_has_failed_is_tried_again(tmp_path: Path, broken: str) -> None:
    files, path = EntryFiles(), tmp_path / "mended.py"
    path.write_text(broken)
    with pytest.raises(EntryError):
        files.load(path, handlers_in)
    path.write_text("handlers = {'fine': print}\n")

    assert list(files.load(path, handlers_in)) == ["fine"]


def test_call_gets_exception_raised_by_entry_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        called(EntryFiles(), path, 10)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("handlers = {}\n", 1, "the file does not define 'handle'"),
        ("handle = 3\n", 1, "'handle' must be a function, not int"),
        ("x = 1\ndef handle(event): ...\n", 2, "'handle' cannot be called with (ctx, event)"),
        ("def handle(:\n", 1, "invalid syntax"),
        ("x = 1\n\nraise RuntimeError('no\\nway')\n", 3, "importing the file raises RuntimeError: no"),
        ("import sys\nsys.exit(3)\n", 2, "importing the file raises SystemExit(3)"),
        ("import no_such_module_at_all\n", 1, "importing the file raises ModuleNotFoundError: No module"),
        ("class Odd(Exception): ...\nraise Odd\n", 2, "importing the file raises Odd"),
    ],
)
def test_unusable_file_is_refused_with_its_place(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "coder.py"
    path.write_text(text)
    with pytest.raises(EntryError) as refused:
        EntryFiles().load(path, handle_in)

    assert refused.value.message.startswith(f"{path}:{line}: {reason}")
    assert (refused.value.code, refused.value.line) == ("E_CONFIG_SCHEMA_INVALID", line)


def test_interruption_during_import_stays_interruption(tmp_path: Path) -> None:
    path = tmp_path / "coder.py"
    path.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        EntryFiles().load(path, handle_in)


def test_file_with_unending_import_is_refused_eventually(slow: Path) -> None:
    with pytest.raises(EntryError, match=r"slow.py:1: importing the file does not end within 0.1 s"):
        EntryFiles(seconds=0.1).load(slow, handle_in)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os\nos._exit(3)\n", "ends the process with exit status 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "ends the process by SIGSEGV"),
        ("import os\nif os.environ.get('ONLY_HERE'):\n    os.abort()\n", "ends the process by SIGABRT"),
        ("while True:\n    pass\n", "does not end within 2 s"),
        ("import os\nos.closerange(3, 4096)\nimport time\ntime.sleep(60)\n", "cuts the connection"),
    ],
    ids=["exit", "fault", "in this environment", "hang", "closed files"],
)
def test_process_ending_file_is_refused_before_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.setenv("ONLY_HERE", "1")
    sound, deadly, behind = (tmp_path / name for name in ("sound.py", "deadly.py", "behind.py"))
    sound.write_text("handle = print\n")
    deadly.write_text(text)
    behind.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n")

    with pytest.raises(EntryError, match=rf"deadly.py:1: importing the file {problem}"):
        EntryFiles(seconds=2).try_out([sound, deadly, behind])
    assert not (tmp_path / "imported").exists()


def test_raising_file_is_tried_once_and_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, raises, leaves = EntryFiles(), tmp_path / "raises.py", tmp_path / "leaves.py"
    raises.write_text("1 / 0\n")
    leaves.write_text("import sys\nprint('x' * 4_000_000)\nsys.exit(1)\n")

    files.try_out([raises, leaves])
    monkeypatch.setattr("subprocess.Popen", None)
    files.try_out([leaves, raises])

    with pytest.raises(EntryError, match="raises ZeroDivisionError"):
        files.load(raises, handle_in)


def test_machine_unable_to_start_processes_postpones_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    sound = tmp_path / "sound.py"
    sound.write_text("handle = print\n")
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", refuse)
        with pytest.raises(BundleRevisionUnavailableError, match="temporarily unavailable"):
            EntryFiles().try_out([sound])
