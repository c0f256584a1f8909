"""Importing entry files where they can do no harm: in child processes with limits.

The children get no environment of ours, a folder of their own to stand in, a time limit per file and
a cap on what they print or write; their whole process group is killed afterwards. One child takes one
file after the other, as a worker does, and another one continues where it ends.
"""

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from goondan_tasks.bundle.entry_probe import EntryKind, ProbeRecord

#: what a file may take to be imported: as long as in a worker, or what runs could not be changed
FILE_SECONDS = 60.0
#: what the interpreter may take to start on a busy machine
START_SECONDS = 60.0
MAX_RECORD = 1_048_576
_TOO_LATE = "the bundle's entry files take too long to be imported, all together"


def import_entries(
    files: Sequence[Path],
    *,
    kind: EntryKind = "tool",
    seconds: float = FILE_SECONDS,
    deadline: float = math.inf,
) -> list[ProbeRecord]:
    """Import each file in a child process and return a record for each, in order.

    ``deadline``, by time.monotonic, is that of all of them.
    """
    records: list[ProbeRecord] = []
    while len(records) < len(files) and time.monotonic() < deadline:
        with _child(files[len(records) :], kind) as (process, pipe):
            records += _Watch(process, pipe, seconds, deadline).records(len(files) - len(records))
    return records + [ProbeRecord(problem=_TOO_LATE)] * (len(files) - len(records))


@contextlib.contextmanager
def _child(files: Sequence[Path], kind: EntryKind) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a child on ``files``; at the end kill its process group."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as printed:
        python = [sys.executable, "-P", "-X", "utf8", "-m"]
        process = subprocess.Popen(
            [*python, "goondan_tasks.bundle.entry_probe", str(writer), kind, *map(str, files)],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        try:
            yield process, reader
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(reader)


def _environment() -> dict[str, str]:
    """Return what Python needs to find the same modules as here, and nothing else."""
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    return {
        "PATH": os.pathsep.join(os.get_exec_path()),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }


@dataclass(slots=True)
class _Watch:
    """Reads what a child reports, with an eye on the clock."""

    process: subprocess.Popen[bytes]
    pipe: int
    seconds: float
    last: float = math.inf
    _problem: str | None = None

    def records(self, wanted: int) -> list[ProbeRecord]:
        """Return the records of the child's first files; the last one may say how the child ended."""
        found: list[ProbeRecord] = []
        lines = self._lines()
        # the first line says that the child is ready
        next(lines, None)
        for line in lines:
            found.append(_parsed(line))
            if found[-1].is_last or len(found) == wanted:
                return found
        return [*found, ProbeRecord(problem=self._problem or self._ending())]

    def _lines(self) -> Iterator[bytes]:
        deadline = time.monotonic() + START_SECONDS
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while selector.select(max(0.0, min(deadline, self.last) - time.monotonic())):
                chunk = os.read(self.pipe, 65_536)
                if not chunk or len(rest) > MAX_RECORD:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    deadline = time.monotonic() + self.seconds
                    yield line
        is_last = self.last < deadline
        self._problem = _TOO_LATE if is_last else f"importing the file does not end within {self.seconds:g} s"

    def _ending(self) -> str:
        try:
            status = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "importing the file cuts the connection of the check"
        if status < 0:
            return f"importing the file ends the process by {signal.Signals(-status).name}"
        return f"importing the file ends the process with exit status {status}"


def _parsed(line: bytes) -> ProbeRecord:
    try:
        return ProbeRecord.model_validate_json(line)
    except ValidationError:
        return ProbeRecord(problem="importing the file disturbs the check", is_last=True)
