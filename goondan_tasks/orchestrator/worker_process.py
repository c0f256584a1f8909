"""A worker process as the orchestrator starts it: on its own, should the orchestrator die.

What it writes goes where the orchestrator's stderr goes, through ``tee``, which lives as long as the
worker does: a worker must not fail because nobody reads its log. ``tail`` keeps the end, for the reason.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Self

#: the command line of ours, safe from the current directory
PROGRAM = (sys.executable, "-P", "-m", "goondan_tasks.cli")

#: how much of the end of a log is kept
LOG_BYTES = 4_000

#: how long the end of a log may take once its worker has ended: something that it started may hold it open
LOG_SECONDS = 1.0

_REASON_LINES = 12
_REASON_CHARACTERS = 2_000

# each ignores what a terminal or a service manager sends to all: the worker decides when it ends
_RELAY = f"trap '' HUP INT TERM PIPE; {{ tee /dev/fd/3 >&2; }} 3>&1 | tail -c {LOG_BYTES}"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def worker_command(agent: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a worker of one agent."""
    return [*PROGRAM, "worker", "--agent", agent, *options]


class WorkerProcess:
    """One worker process of ours."""

    def __init__(self, process: "subprocess.Popen[bytes]", relay: "subprocess.Popen[bytes]") -> None:
        #: the process itself
        self.process = process
        self._relay = relay
        self._log_end = b""
        self._reader = threading.Thread(target=self._read_log_end, daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start a worker.

        Raises:
            OSError: it cannot be started.
        """
        log_end, log = os.pipe()
        try:
            relay = subprocess.Popen(
                ["/bin/sh", "-c", _RELAY], stdin=log_end, stdout=subprocess.PIPE, start_new_session=True
            )
            process = subprocess.Popen(
                list(command),
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(log_end)
            os.close(log)
        return cls(process, relay)

    def reason(self) -> str:
        """Say how it has ended, with the end of its log."""
        code = self.process.wait()
        self._reader.join(LOG_SECONDS)
        return ending(code, self._log_end)

    def _read_log_end(self) -> None:
        log, _ = self._relay.communicate()
        self._log_end = log


def ending(code: int, log: bytes) -> str:
    """Say how a worker has ended: its exit status, negative if a signal has ended it, and its last lines."""
    how = f"It was ended by signal {-code}." if code < 0 else f"It ended with {code}."
    return f"{how}\n{last_lines(log)}".rstrip()


def last_lines(log: bytes) -> str:
    """Return the end of a log, fit to be shown: few lines, no colours."""
    text = _STYLE.sub("", log.decode("utf-8", "replace"))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_REASON_LINES:])[-_REASON_CHARACTERS:]
