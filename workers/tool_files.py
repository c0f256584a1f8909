"""The files of tools, imported when one of their tools is first called: whatever they do, calls end."""

import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from time import monotonic
from typing import Any

from goondan_tasks.entry import IMPORT_HINT, load_entry
from goondan_tasks.errors import ToolTimeoutError
from goondan_tasks.tool_api import ToolHandler
from workers.cancellation import Cancellation
from workers.function_outcome import FunctionOutcome, outcome_of
from workers.importing import IMPORT_SECONDS, hangs
from workers.threads import on_new_thread

Handlers = Mapping[str, ToolHandler]


class _Import:
    """One file that is being imported, on a thread of its own: it may hang, and nobody can interrupt it."""

    def __init__(self, path: Path) -> None:
        self.begun_at = monotonic()
        self.outcome = Future[FunctionOutcome[Handlers]]()
        on_new_thread(lambda: self.outcome.set_result(outcome_of(lambda: load_entry(path))))


class ToolFiles:
    """Imports files, each once at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Path, _Import] = {}

    def handlers(self, path: Path, seconds: float, cancellation: Cancellation) -> Handlers:
        """Return the handlers of a file.

        It is waited for until its import has gone on for ``seconds``, or for IMPORT_SECONDS: not at all,
        if it has done so already on behalf of other calls.

        Raises:
            EntryError: the file is missing, is no Python, or has no usable ``handlers``.
            ToolTimeoutError: it takes too long.
            GoondanError: what the call was cancelled with.
            Exception: whatever the file's own code raises when it is imported.
        """
        with self._lock:
            importing = self._under_way.get(path) or self._under_way.setdefault(path, _Import(path))
        seconds = min(seconds, IMPORT_SECONDS)
        if not _ends(importing, seconds, cancellation):
            raise cancellation.error or ToolTimeoutError(
                f"The tool cannot be run: {path}: {hangs(seconds)}.", suggestion=IMPORT_HINT
            )
        with self._lock:
            if self._under_way.get(path) is importing:
                del self._under_way[path]
        return importing.outcome.result().get()


def _ends(importing: _Import, seconds: float, cancellation: Cancellation) -> bool:
    cancelled: Future[None] = Future()
    forget = cancellation.on_cancel(lambda: cancelled.set_result(None))
    left = max(importing.begun_at + seconds - monotonic(), 0)
    either: set[Future[Any]] = {importing.outcome, cancelled}
    wait(either, left, return_when=FIRST_COMPLETED)
    forget()
    return importing.outcome.done()
