"""The lines of the standard input, each given out until it is dealt with."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from goondan_tasks.connectors.terminal import TerminalLines
from tests.waiting import wait_until


class Pipe:
    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def write(self, data: bytes) -> None:
        os.write(self._writer, data)

    def end(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.end()
    os.close(pipe.reader)


def texts(lines: TerminalLines, run: str, count: int) -> list[str | None]:
    found = [lines.next(run, threading.Event()) for _ in range(count)]
    return [None if one is None else one.text for one in found]


def test_lines_end_at_their_ends_and_with_input(pipe: Pipe) -> None:
    pipe.write("one\r\n\nzwei ü\n\xff".encode("latin-1"))
    pipe.write(b"\nrest")
    pipe.end()

    assert texts(TerminalLines(pipe.reader), "run", 7) == [
        "one",
        "",
        "zwei \ufffd",
        "\ufffd",
        "rest",
        None,
        None,
    ]


def test_lines_are_numbered_and_name_their_program(pipe: Pipe) -> None:
    pipe.write(b"a\nb\n")
    lines = TerminalLines(pipe.reader)
    first, second = lines.next("run", threading.Event()), lines.next("run", threading.Event())

    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (0, 1)
    assert first.program == second.program


def test_new_run_gets_line_last_run_left_unhandled(pipe: Pipe) -> None:
    pipe.write(b"a\nb\nc\n")
    lines = TerminalLines(pipe.reader)

    assert texts(lines, "first", 2) == ["a", "b"]
    assert texts(lines, "second", 2) == ["b", "c"]


def test_run_ending_while_waiting_takes_no_line(pipe: Pipe) -> None:
    lines, has_ended, answers = TerminalLines(pipe.reader), threading.Event(), []
    waiting = threading.Thread(target=lambda: answers.append(lines.next("first", has_ended)))
    waiting.start()
    has_ended.set()
    wait_until(lambda: answers == [None])
    waiting.join()
    pipe.write(b"a\n")

    assert texts(lines, "second", 1) == ["a"]


def test_line_may_be_longer_than_read(pipe: Pipe) -> None:
    def write() -> None:
        pipe.write(b"x" * 300_000 + b"\nnext\n")
        pipe.end()

    writing = threading.Thread(target=write)
    writing.start()

    assert texts(TerminalLines(pipe.reader), "run", 3) == ["x" * 300_000, "next", None]
    writing.join()


#: a session with a terminal, and a process in its background, which is to read a line
BACKGROUND = """
import os, sys, threading
from goondan_tasks.connectors.terminal import TerminalLines
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    has_ended = threading.Event()
    threading.Timer(0.3, has_ended.set).start()
    os._exit(0 if TerminalLines(terminal).next("run", has_ended) is None else 1)
status = os.waitpid(job, os.WUNTRACED)[1]
sys.exit(9 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status))
"""


def test_program_in_background_of_terminal_is_not_stopped() -> None:
    master, terminal = os.openpty()
    try:
        os.write(master, b"typed\n")
        command = [sys.executable, "-c", BACKGROUND, os.ttyname(terminal)]
        assert subprocess.run(command, timeout=60, check=False).returncode == 0
    finally:
        os.close(master)
        os.close(terminal)
