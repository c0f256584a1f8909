"""The child process that imports entry files.

``python -m goondan_tasks.entry_probe FD LIFE MAX_WRITTEN KIND FILE…`` writes one :class:`ProbeRecord` per
line to the file descriptor FD: one when it is ready, then one per file. An uncaught exception ends the
process after its record; the parent starts another for the remaining files. When the pipe LIFE is closed, the
parent is gone, and the child ends with all that it has started.
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

from goondan_tasks.entry import EntryError, handle_in, handlers_in, import_entry, import_failure, register_in

#: whose entry it is: it needs ``handlers``, ``handle`` or ``register``; ``any`` is only imported
EntryKind = Literal["tool", "agent", "extension", "any"]

_READERS: Mapping[str, Callable[[ModuleType], Any]] = {
    "tool": handlers_in,
    "agent": handle_in,
    "extension": register_in,
    "any": lambda _: (),
}


class ProbeRecord(BaseModel):
    """The outcome for one file: the names of its handlers, or a problem in a line."""

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
    # what a file starts must not keep the pipes open
    os.set_inheritable(int(descriptor), False)
    os.set_inheritable(int(life), False)
    threading.Thread(target=_end_with, args=[int(life)], daemon=True).start()
    if max_written != "0":
        # printed output goes to a file, so the limit holds for it too
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_written), int(max_written)))
    records = os.fdopen(int(descriptor), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    _write(records, ProbeRecord())
    for file in files:
        sys.excepthook = functools.partial(_report_uncaught, records, file)
        try:
            found = _READERS[kind](import_entry(Path(file)))
            _write(records, ProbeRecord(handlers=tuple(found) if kind == "tool" else ()))
        except EntryError as error:
            _write(records, _problem(error))
        except SystemExit as error:
            _write(records, _problem(import_failure(Path(file), error)))


def _end_with(life: int) -> None:
    """End this process and its group when the other end of the pipe is closed."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _problem(error: EntryError, *, is_last: bool = False) -> ProbeRecord:
    return ProbeRecord(problem=error.reason, line=error.line, suggestion=error.suggestion, is_last=is_last)


def _report_uncaught(
    records: TextIO, file: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    failure = import_failure(Path(file), error.with_traceback(trace))
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        failure.reason = f"importing the file prints or writes more than {limit} bytes"
    _write(records, _problem(failure, is_last=True))


def _write(records: TextIO, record: ProbeRecord) -> None:
    records.write(record.model_dump_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
