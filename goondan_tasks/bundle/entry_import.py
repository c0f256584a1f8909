"""Importing entry files where they can do no harm: in child processes with limits.

The children get a folder of their own to stand in and a time limit per file; their whole process group is
killed afterwards, and when this process ends. One child takes one file after the other, as a worker does, and
another one continues where it ends. To check a bundle they get no environment of ours, and a cap on what they
print or write; what a worker is about to import is tried as that would: with its environment.
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
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from goondan_tasks.bundle.entry_probe import EntryKind, ProbeRecord

#: what a file may take to be imported: as long as in a worker, or what runs could not be changed
FILE_SECONDS = 60.0
#: what the interpreter may take to start on a busy machine
START_SECONDS = 60.0
MAX_RECORD = 1_048_576
#: bytes that importing may print or write to a file, where a bundle is checked
MAX_WRITTEN = 1_048_576
_PROBE = (sys.executable, "-P", "-X", "utf8", "-m", "goondan_tasks.bundle.entry_probe")
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
    records = list(_records(files, kind, seconds, deadline))
    return records + [ProbeRecord(problem=_TOO_LATE)] * (len(files) - len(records))


def fatal_import(files: Sequence[Path], *, seconds: float = FILE_SECONDS) -> tuple[Path, str] | None:
    """Import files as this process would; return the first that ends it, or does not end, and how.

    What a file raises is no such thing. Those behind the first are not imported.

    Raises:
        OSError: no process can be started.
    """
    records = _records(files, "any", seconds, math.inf, as_here=True)
    with contextlib.closing(records):
        for file, record in zip(files, records, strict=True):
            if record.is_fatal:
                return file, str(record.problem)
    return None


def _records(
    files: Sequence[Path], kind: EntryKind, seconds: float, deadline: float, *, as_here: bool = False
) -> Generator[ProbeRecord]:
    done = 0
    while done < len(files) and time.monotonic() < deadline:
        with _child(files[done:], kind, as_here=as_here) as (process, pipe):
            for record in _Watch(process, pipe, seconds, deadline).records(len(files) - done):
                done += 1
                yield record


@contextlib.contextmanager
def _child(
    files: Sequence[Path], kind: EntryKind, *, as_here: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a child on ``files``; at the end kill its process group."""
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        printed = None if as_here else opened.enter_context(tempfile.TemporaryFile())
        (reader, writer), (life, lifeline) = os.pipe(), os.pipe()
        opened.callback(os.close, reader)
        opened.callback(os.close, lifeline)
        limits = [str(writer), str(life), "0" if as_here else str(MAX_WRITTEN)]
        theirs = opened.enter_context(contextlib.ExitStack())
        theirs.callback(os.close, writer)
        theirs.callback(os.close, life)
        process = subprocess.Popen(
            [*_PROBE, *limits, kind, *map(str, files)],
            cwd=folder,
            env=_environment(as_here=as_here),
            stdin=subprocess.DEVNULL,
            stdout=printed or subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            pass_fds=[writer, life],
            start_new_session=True,
        )
        theirs.close()
        try:
            yield process, reader
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(*, as_here: bool) -> dict[str, str]:
    """Return what Python needs to find the same modules as here, and nothing else but what is here."""
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    here = os.environ if as_here else {}  # noqa: TID251 - what a worker imports may read any of it
    return {
        **here,
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

    def records(self, wanted: int) -> Iterator[ProbeRecord]:
        """Yield the records of the child's first files; the last one may say how the child ended."""
        lines = self._lines()
        # the first line says that the child is ready
        is_ready = next(lines, None) is not None
        for _ in range(wanted):
            line = next(lines, None)
            if line is None:
                yield ProbeRecord(problem=self._problem or self._ending(), is_fatal=is_ready)
                return
            record = _parsed(line)
            yield record
            if record.is_last:
                return

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
