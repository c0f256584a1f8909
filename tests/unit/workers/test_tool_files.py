"""Importing the files of tools: one that hangs holds no call for longer than that may take."""

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from goondan_tasks.errors import ToolCancelledError, ToolTimeoutError
from tests.waiting import wait_until
from workers.cancellation import Cancellation
from workers.tool_files import ToolFiles

SLOW = """
import pathlib, time
here = pathlib.Path(__file__).parent
with (here / "begun").open("a") as file:
    file.write("x")
while not (here / "go").exists():
    time.sleep(0.01)
handlers = {"work": lambda ctx, input: None}
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    yield path
    (tmp_path / "go").touch()


def test_a_file_that_hangs_is_waited_for_once(slow: Path) -> None:
    files = ToolFiles()
    with pytest.raises(ToolTimeoutError, match=r"slow.py: importing the file does not end within 0.2 s"):
        files.handlers(slow, 0.2, Cancellation())
    at = monotonic()
    for _ in range(100):
        with pytest.raises(ToolTimeoutError):
            files.handlers(slow, 0.2, Cancellation())
    assert monotonic() - at < 10, "a hundred times 0.2 s, if each were waited for"
    assert (slow.parent / "begun").read_text() == "x"


def test_a_file_that_took_too_long_for_one_call_serves_the_next(slow: Path) -> None:
    files = ToolFiles()
    with pytest.raises(ToolTimeoutError):
        files.handlers(slow, 0, Cancellation())
    (slow.parent / "go").touch()
    assert list(files.handlers(slow, 10, Cancellation())) == ["work"]
    assert (slow.parent / "begun").read_text() == "x"


def test_a_cancel_ends_the_waiting(slow: Path) -> None:
    cancellation = Cancellation()
    wanted = ToolCancelledError("enough")

    def cancel() -> None:
        wait_until((slow.parent / "begun").exists)
        cancellation.set(wanted)

    threading.Thread(target=cancel).start()
    with pytest.raises(ToolCancelledError) as ended:
        ToolFiles().handlers(slow, 60, cancellation)
    assert ended.value is wanted


def test_many_calls_import_a_file_once(slow: Path) -> None:
    files, found = ToolFiles(), []
    calls = [
        threading.Thread(target=lambda: found.append(files.handlers(slow, 20, Cancellation())))
        for _ in range(8)
    ]
    for call in calls:
        call.start()
    (slow.parent / "go").touch()
    for call in calls:
        call.join(20)
    assert [list(handlers) for handlers in found] == [["work"]] * 8
    assert (slow.parent / "begun").read_text() == "x"
