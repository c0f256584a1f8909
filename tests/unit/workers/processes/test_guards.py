"""A program below its guard: what it reads, and how its end is told."""

import os
import subprocess
import sys

import pytest

from workers.processes.guards import Guard, describe_end

COPY = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]


def test_a_program_reads_what_it_is_given() -> None:
    source, ours = os.pipe()
    guard = Guard(COPY, stdin=source, stdout=subprocess.PIPE, stderr=None)
    os.close(source)
    os.write(ours, b"hello")
    os.close(ours)

    assert guard.process.stdout
    assert guard.process.stdout.read() == b"hello"
    assert guard.end(patience_seconds=10) == 0


def test_a_program_has_no_input_otherwise() -> None:
    guard = Guard(COPY, stdout=subprocess.PIPE, stderr=None)

    assert guard.process.stdout
    assert guard.process.stdout.read() == b""
    assert guard.end(patience_seconds=10) == 0


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (3, "ended with exit status 3"),
        (-9, "was ended by SIGKILL"),
        (None, "was killed together with its guard"),
    ],
)
def test_an_end_is_told_in_words(exit_code: int | None, words: str) -> None:
    assert describe_end(exit_code) == words
