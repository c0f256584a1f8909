"""The child process that imports entry files.

``python -m goondan_tasks.entry_probe FD LIFE MAX_WRITTEN KIND FILE…`` writes a :class:`ProbeRecord` a
line to the file descriptor FD: one when it is ready, then one a file. What a file raises ends the process,
after its record; the parent starts another for the rest. When LIFE, a pipe, is at its end, the parent is gone
and the child ends with all that it has started.
"""

import errno
import functools
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, TextIO

from pydantic import BaseModel

from goondan_tasks.entry import (
    EntryError,
    handle_in,
    handlers_in,
    import_entry,
    import_failure,
    register_in,
)

#: whose entry it is: one with ``handlers``, with ``handle`` or with ``register``; ``any`` is only imported
EntryKind = Literal["tool", "agent", "extension", "any"]

_READERS: Mapping[str, Callable[[ModuleType], Any]] = {
    "tool": handlers_in,
    "agent": handle_in,
    "extension": register_in,
    "any": lambda _: (),
}


class ProbeRecord(BaseModel):
    """What came of one file: the names of its handlers, or a problem in a line."""

    handlers: tuple[str, ...] = ()
    problem: str | None = None
    line: int = 1
    suggestion: str | None = None
    #: whether the process ends with this record
    is_last: bool = False
    #: whether importing the file would end a worker, or never end
    is_fatal: bool = False


def main(arguments: Sequence[str]) -> None:
    """Import each file and report on it."""
    descriptor, life, max_written, kind, *files = arguments
    # what a file starts must not hold the pipes open
    os.set_inheritable(int(descriptor), False)
    os.set_inheritable(int(life), False)
    threading.Thread(target=_end_with, args=[int(life)], daemon=True).start()
    if max_written != "0":
        # the printed output goes to a file: so the limit holds for it too
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_written), int(max_written)))
    records = os.fdopen(int(descriptor), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    _write(records, ProbeRecord())
    for file in files:
        sys.excepthook = functools.partial(_report_uncaught, records, file)
        _write(records, _probed(Path(file), kind))


def _end_with(life: int) -> None:
    """End this process, and its group, when nobody holds the other end of a pipe any more."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _probed(file: Path, kind: str) -> ProbeRecord:
    try:
        found = _READERS[kind](import_entry(file))
        return ProbeRecord(handlers=tuple(found) if kind == "tool" else ())
    except EntryError as error:
        return _problem(error)
    except SystemExit as error:
        return _problem(import_failure(file, error))


def _problem(error: EntryError, *, is_last: bool = False) -> ProbeRecord:
    return ProbeRecord(problem=error.reason, line=error.line, suggestion=error.suggestion, is_last=is_last)


def _report_uncaught(
    records: TextIO, file: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    failure = import_failure(Path(file), error.with_traceback(trace))
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        failure.reason = f"importing the file prints or writes more than {most} bytes"
    _write(records, _problem(failure, is_last=True))


def _write(records: TextIO, record: ProbeRecord) -> None:
    records.write(record.model_dump_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
