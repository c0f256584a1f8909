"""The last lines that a run logs: they are kept with its call if it fails."""

import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from goondan_tasks.contract.messages import CallLogFields
from goondan_tasks.contract.redaction import hidden_by_place
from goondan_tasks.contract.wording import are_plain, counted, on_one_line, printable, shown_field

#: how much is kept of a run; with the line about those left out it is at most 16 KiB
MOST_LINES = 50
MOST_BYTES = 16_000

#: what is shown of a call's own lines, in characters: of a line, and of the end of its traceback
LONGEST_LINE = 1_000
LONGEST_TRACE = 2_000

#: what all lines of a call repeat, and what has a place of its own
_NOT_IN_BRIEF = frozenset({
    *CallLogFields._fields,
    *("event", "exception", "level", "stack", "timestamp", "tool_call_id"),
})  # fmt: skip
_USUAL_LOGGERS = ("goondan.tool", "goondan.extension")


class RunLines:
    """The last lines of one run; thread-safe. It takes no memory for lines before there is one."""

    __slots__ = ("__weakref__", "_left_out", "_lines", "_size")

    #: held for a moment; one for all, as most runs log nothing
    _lock = threading.Lock()

    def __init__(self) -> None:
        #: a line as bytes, or the fields that it is made of when it is asked for
        self._lines: deque[bytes | Mapping[str, Any]] = deque()
        #: of those that are bytes
        self._size = 0
        self._left_out = 0

    def add(self, line: str | Mapping[str, Any]) -> None:
        """Add a line, which may be followed by a traceback, or its fields; earlier ones make room for it.

        Fields must not change any more. Most runs end well, and nobody asks for their lines.
        """
        kept: bytes | Mapping[str, Any]
        if isinstance(line, str) or not _is_short(line):
            kept = (line if isinstance(line, str) else brief_line(line)).encode(errors="backslashreplace")
            kept = kept[-MOST_BYTES:]
        else:
            kept = line
        with self._lock:
            self._lines.append(kept)
            self._size += _size_of(kept)
            while len(self._lines) > MOST_LINES or self._size > MOST_BYTES + 1:
                self._size -= _size_of(self._lines.popleft())
                self._left_out += 1

    @property
    def are_empty(self) -> bool:
        return not self._lines

    def text(self) -> str:
        """Return the lines, without what is likely a secret by its place."""
        with self._lock:
            kept, left_out = [*self._lines], self._left_out
        texts = [
            line if isinstance(line, bytes) else brief_line(line).encode(errors="backslashreplace")
            for line in kept
        ]
        size, first = sum(len(text) + 1 for text in texts), 0
        while size > MOST_BYTES + 1:
            size, first = size - len(texts[first]) - 1, first + 1
        left_out += first
        text = hidden_by_place(b"\n".join(texts[first:]).decode(errors="replace"))
        text = text.encode()[-MOST_BYTES:].decode(errors="ignore")  # a mask may be longer than a secret
        return f"({counted(left_out, 'earlier line')} left out)\n{text}" if left_out else text


def _is_short(fields: Mapping[str, Any]) -> bool:
    """Return whether fields take little memory, cannot change, and can be shown."""
    values = fields.values()
    return are_plain(values) and len("".join(map(str, values))) <= LONGEST_LINE


def _size_of(line: bytes | Mapping[str, Any]) -> int:
    return len(line) + 1 if isinstance(line, bytes) else 0


def brief_line(fields: Mapping[str, Any]) -> str:
    """Write the fields of a call's line, without secrets, as ``time level event name=value …``.

    The end of its traceback follows on lines of its own.
    """
    words = [_cut(str(fields[name])) for name in ("timestamp", "level", "event") if name in fields]
    words += [
        f"{name}={_cut(shown_field(_cut(value) if isinstance(value, str) else value))}"
        for name, value in fields.items()
        if name not in _NOT_IN_BRIEF and not (name == "logger" and value in _USUAL_LOGGERS)
    ]
    line = _cut(on_one_line(_cut(" ".join(words))))
    trace = str(fields.get("exception") or fields.get("stack") or "")
    return f"{line}\n{printable(trace[-LONGEST_TRACE:])[-LONGEST_TRACE:]}" if trace else line


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"


def _renew_lock() -> None:
    RunLines._lock = threading.Lock()


# another thread may have held it, which a fork by a handler does not have
os.register_at_fork(after_in_child=_renew_lock)
