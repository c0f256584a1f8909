"""Importing files that strangers wrote."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from goondan_tasks.entry import IMPORT_HINT, EntryError, import_failure
from goondan_tasks.errors import ToolNotFoundError
from workers.beside_loop import within

#: what a file may take to be imported
IMPORT_SECONDS = 60.0

T = TypeVar("T")


class Importing(AbstractContextManager[None]):
    """Tells whatever a file raises, even ``sys.exit()``, as an error of that file, unless it is one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_told = isinstance(error, EntryError | ToolNotFoundError)
        if isinstance(error, Exception | SystemExit) and not is_told:
            raise import_failure(self._path, error) from error


def imported(path: Path, load: Callable[[], T]) -> T:
    """Return what ``load`` makes of a file that it imports.

    Raises:
        EntryError: the file cannot be imported, or not in time.
    """
    with Importing(path):
        return in_time(path, load)


def in_time(path: Path, load: Callable[[], T]) -> T:
    """Return what ``load`` makes of a file that it imports, on a thread of its own: the file may hang.

    Raises:
        EntryError: importing the file takes too long.
        Exception: whatever ``load`` raises.
    """
    outcome = within(IMPORT_SECONDS, load)
    if outcome is None:
        message = f"importing the file does not end within {IMPORT_SECONDS:g} s"
        raise EntryError(path, message, IMPORT_HINT)
    return outcome.get()
