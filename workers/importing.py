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
    """Tells whatever a file raises, even ``sys.exit()``, as an error of that file; nothing is let pass."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, EntryError):
            raise import_failure(self._path, error) from error


def imported(path: Path, load: Callable[[], T]) -> T:
    """Return what ``load`` makes of a file that it imports, on a thread of its own: the file may hang.

    Raises:
        EntryError: the file cannot be imported, or not in time.
        ToolNotFoundError: it has no such handler.
    """
    outcome = within(IMPORT_SECONDS, load)
    if outcome is None:
        message = f"importing the file does not end within {IMPORT_SECONDS:g} s"
        raise EntryError(path, message, IMPORT_HINT)
    if isinstance(outcome.error, ToolNotFoundError):
        raise outcome.error
    with Importing(path):
        return outcome.get()
