"""The last lines that a run logs: they are kept with its call if it fails."""

import os
import threading

from goondan_tasks.contract.redaction import hidden_by_place
from goondan_tasks.contract.wording import counted

#: how much is kept of a run; with the line about those left out it is at most 16 KiB
MOST_LINES = 50
MOST_BYTES = 16_000


class RunLines:
    """The last lines of one run; thread-safe. It takes no memory for lines before there is one."""

    __slots__ = ("__weakref__", "_left_out", "_lines", "_size")

    #: held for a moment; one for all, as most runs log nothing
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        #: of the lines, in bytes
        self._size = 0
        self._left_out = 0

    def add(self, line: str) -> None:
        """Add a line, which may be followed by a traceback; earlier ones make room for it."""
        data = line.encode(errors="backslashreplace")[-MOST_BYTES:]
        with self._lock:
            self._lines.append(data)
            self._size += len(data) + 1
            while len(self._lines) > MOST_LINES or self._size > MOST_BYTES + 1:
                self._size -= len(self._lines.pop(0)) + 1
                self._left_out += 1

    @property
    def are_empty(self) -> bool:
        return not self._lines

    def text(self) -> str:
        """Return the lines, without what is likely a secret by its place."""
        with self._lock:
            lines, left_out = [*self._lines], self._left_out
        text = hidden_by_place(b"\n".join(lines).decode(errors="replace"))
        text = text.encode()[-MOST_BYTES:].decode(errors="ignore")  # a mask may be longer than a secret
        return f"({counted(left_out, 'earlier line')} left out)\n{text}" if left_out else text


def _renew_lock() -> None:
    RunLines._lock = threading.Lock()


# another thread may have held it, which a fork by a handler does not have
os.register_at_fork(after_in_child=_renew_lock)
