"""The lines of this program's standard input, for the one Connection whose Connector says ``stdin: true``.

A connector's own standard input is how it is ended, and its process group is not the terminal's foreground,
so it cannot read the terminal. This program reads, and gives out one line after the other. The connector
asks for the next line when it has dealt with the last one; a line that a connector had when it died is given
out again, as the same line.
"""

import os
import select
import threading
import uuid

from goondan_tasks.authoring.connector_api import Line

#: how soon the end of those who wait for a line is noticed
_LOOK_SECONDS = 0.2
_READ_BYTES = 65_536


class TerminalLines:
    """Lines, each kept until it is dealt with; thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._reading = threading.Lock()
        self._unread = bytearray()
        self._is_over = False
        #: names this program in its lines
        self._program = uuid.uuid4().hex
        self._number = 0
        #: what was given out last, and to which run of the connector
        self._given: Line | None = None
        self._holder = ""

    def next(self, run: str, has_ended: threading.Event) -> Line | None:
        """Return the next line; ``None`` at the end of the input, or if the run has ended meanwhile.

        ``run`` names a run of the connector: the first line of another run is the last one that was given
        out, with which the former run may not have dealt.
        """
        with self._reading:
            if self._given is None or run == self._holder:
                text = self._read(has_ended)
                if text is None and not self._is_over:
                    return None
                self._given = None if text is None else Line(text, self._number, self._program)
                self._number += 1
            self._holder = run
            return self._given

    def _read(self, has_ended: threading.Event) -> str | None:
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0 and not self._is_over:
            searched = len(self._unread)
            if has_ended.is_set():
                return None
            if not self._is_foreground():
                has_ended.wait(_LOOK_SECONDS)
            elif select.select([self._descriptor], [], [], _LOOK_SECONDS)[0]:
                data = os.read(self._descriptor, _READ_BYTES)
                self._is_over = not data
                self._unread += data
        if not self._unread:
            return None
        line = bytes(self._unread[: end + 1 or None])
        del self._unread[: len(line)]
        return line.decode("utf-8", "replace").rstrip("\r\n")

    def _is_foreground(self) -> bool:
        """Return whether reading does not stop this program, as it does a job in a shell's background."""
        if not os.isatty(self._descriptor):
            return True
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it is not the terminal of this session, so nothing is stopped
            return True
