"""The last log lines of a run: what a line says, and how much is kept."""

import subprocess
import sys
from typing import Any

import pytest

from goondan_tasks.contract.run_lines import (
    LONGEST_LINE,
    LONGEST_TRACE,
    MOST_BYTES,
    MOST_LINES,
    RunLines,
    brief_line,
)

# in a process of its own: forking this one, with its threads, is not safe
_FORK = """
import os, signal
from goondan_tasks.contract.run_lines import RunLines
lines = RunLines()
with RunLines._lock:
    if os.fork() == 0:
        signal.alarm(20)
        lines.add("a line of the child")
        print(lines.text(), flush=True)
        os._exit(0)
os.wait()
"""

LINE = {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "sails"}


def test_run_that_logged_nothing_has_empty_text() -> None:
    lines = RunLines()
    assert (lines.are_empty, lines.text()) == (True, "")


def test_line_has_time_level_text_without_call_fields() -> None:
    about = {"call_id": "6f1c", "attempt": 1, "worker": "w1", "tool_call_id": "c1", "logger": "goondan.tool"}
    line = brief_line({"wind": 3, "from": "the north", "to": "south", "none": None, **LINE, **about})
    assert line == "2026-01-01T00:00:00Z info sails wind=3 from='the north' to=south none=None"


@pytest.mark.parametrize("value", ["two\nlines", "\x1b[2J", "\ud800", "\u202etxt", {"a": "\x07\n"}, object()])
def test_no_value_breaks_line_or_controls_terminal(value: Any) -> None:
    line = brief_line({**LINE, "event": f"says {value}", "value": value, str(value): 1})
    assert line.isprintable()


def test_end_of_exception_follows_on_own_lines() -> None:
    line = brief_line({**LINE, "exception": "x" * LONGEST_TRACE + "\n\x1b[2J\nValueError: no wind"})
    first, *trace = line.splitlines()
    assert first.endswith("info sails")
    assert trace[1:] == ["\\x1b[2J", "ValueError: no wind"]
    assert len(line) <= LONGEST_LINE + 1 + LONGEST_TRACE


def test_last_lines_are_kept_and_others_counted() -> None:
    lines = RunLines()
    for number in range(MOST_LINES + 3):
        lines.add(f"line {number}")
    first, *kept = lines.text().splitlines()
    assert first == "(3 earlier lines left out)"
    assert kept == [f"line {number}" for number in range(3, MOST_LINES + 3)]


@pytest.mark.parametrize("text", ["x", "\ud800", "\U0001f9ed", "pwd=a ", "\x00", "\n"])
def test_kept_lines_are_bounded_in_bytes(text: str) -> None:
    lines = RunLines()
    for _ in range(MOST_LINES):
        lines.add(
            brief_line({**LINE, "event": text * 100_000, "text": text * 100_000, "exception": text * 9_999})
        )
    assert MOST_BYTES // 2 < len(lines.text().encode()) <= 16_384


def test_likely_secrets_in_text_of_line_are_masked() -> None:
    lines = RunLines()
    lines.add(brief_line({**LINE, "event": "asks with password=tr0ub4dor and Bearer abcdefghijkl"}))
    assert lines.text() == "2026-01-01T00:00:00Z info asks with password=*** and Bearer ***"


def test_forked_process_adds_lines_although_thread_held_lock() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "a line of the child\n"


def test_lines_are_formatted_from_fields_when_requested() -> None:
    lines = RunLines()
    fields: list[dict[str, Any]] = [
        {**LINE, "wind": 3},
        {**LINE, "wind": "x" * 2 * LONGEST_LINE},
        {**LINE, "wind": ["north"]},
    ]
    for each in fields:
        lines.add(each)
    expected = [brief_line(each) for each in fields]
    fields[2]["wind"].append("south")
    assert lines.text().splitlines() == expected


def test_fields_have_limit_of_lines() -> None:
    lines = RunLines()
    for number in range(MOST_LINES):
        lines.add({**LINE, "number": number, "text": "\u20ac" * 900})
    first, *kept = lines.text().splitlines()
    assert first == f"({MOST_LINES - len(kept)} earlier lines left out)"
    assert len("\n".join(kept).encode()) <= MOST_BYTES
    assert f"number={MOST_LINES - 1} " in kept[-1]
