"""Importing files that strangers wrote."""

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from goondan_tasks.entry import import_failure
from goondan_tasks.errors import GoondanError

#: what an entry file may take to be imported
IMPORT_SECONDS = 60.0


def hangs(seconds: float) -> str:
    """Say of a file that it takes longer than that."""
    return f"importing the file does not end within {seconds:g} s"


class Importing(AbstractContextManager[None]):
    """Tells whatever a file raises, even ``sys.exit()``, as an error of that file, but for our own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, GoondanError):
            raise import_failure(self._path, error) from error
