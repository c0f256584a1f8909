"""The child process that imports entry files: ``python -m goondan_tasks.bundle.entry_probe FD FILE…``.

It writes a :class:`ProbeRecord` a line to the file descriptor FD: one when it is ready, then one a
file. What a file raises ends the process, after its record; the parent starts another for the rest.
"""

import errno
import functools
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pydantic import BaseModel

from goondan_tasks.entry import EntryError, load_entry

#: bytes that importing may print or write to a file
MAX_WRITTEN = 1_048_576


class ProbeRecord(BaseModel):
    """What came of one file: its handlers, or a problem in a line."""

    handlers: tuple[str, ...] = ()
    problem: str | None = None
    line: int = 1
    suggestion: str | None = None
    #: whether the process ends with this record
    is_last: bool = False


def main(arguments: Sequence[str]) -> None:
    """Import each file and report on it."""
    descriptor, *files = arguments
    # what a file starts must not hold the pipe open
    os.set_inheritable(int(descriptor), False)
    # the printed output goes to a file: so the limit holds for it too
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_WRITTEN, MAX_WRITTEN))
    records = os.fdopen(int(descriptor), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    _write(records, ProbeRecord())
    for file in files:
        sys.excepthook = functools.partial(_report_uncaught, records, file)
        _write(records, _probed(Path(file)))


def _probed(file: Path) -> ProbeRecord:
    try:
        return ProbeRecord(handlers=tuple(load_entry(file)))
    except EntryError as error:
        return ProbeRecord(problem=error.reason, line=error.line, suggestion=error.suggestion)
    except SystemExit as error:
        line = _line_in(file, error.__traceback__)
        return ProbeRecord(problem=f"importing the file raises {error!r}", line=line)


def _report_uncaught(
    records: TextIO, file: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    reason = str(error).partition("\n")[0][:300]
    problem = f"importing the file raises {kind.__name__}" + (f": {reason}" if reason else "")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        problem = f"importing the file prints or writes more than {MAX_WRITTEN} bytes"
    _write(records, ProbeRecord(problem=problem, line=_line_in(Path(file), trace), is_last=True))


def _line_in(file: Path, trace: TracebackType | None) -> int:
    """Return the last line of ``file`` that was running, or 1."""
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _write(records: TextIO, record: ProbeRecord) -> None:
    records.write(record.model_dump_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
