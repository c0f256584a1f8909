"""The entry files of a bundle: each is imported once; an import that hangs blocks no caller forever."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar

from goondan_tasks.authoring.entry import IMPORT_HINT, EntryError, import_entry, import_failure
from goondan_tasks.bundle.entries import fatal_import
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, GoondanError, ToolTimeoutError
from workers.cancellation import Cancellation
from workers.concurrency.threads import coming_outcome
from workers.outcome import FunctionOutcome

T = TypeVar("T")

#: the default limit of an import
IMPORT_SECONDS = 60.0


class _Load:
    """An import in progress."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.begun_at = monotonic()
        self.outcome = coming_outcome(load)

    def ends(self, seconds: float, cancellation: Cancellation) -> bool:
        """Wait until ``seconds`` after its start, or a cancel of the call; return whether it has ended."""
        cancelled: Future[None] = Future()
        forget = cancellation.on_cancel(lambda: cancelled.set_result(None))
        left = max(self.begun_at + seconds - monotonic(), 0)
        either: set[Future[Any]] = {self.outcome, cancelled}
        wait(either, left, return_when=FIRST_COMPLETED)
        forget()
        return self.outcome.done()


class EntryFiles:
    """Imports each file once, even if it is edited later; a failed import is tried again.

    The parameters ``read`` are readers of :mod:`goondan_tasks.authoring.entry`.
    """

    def __init__(self, seconds: float = IMPORT_SECONDS) -> None:
        #: the limit of each import
        self.seconds = seconds
        self._lock = threading.Lock()
        self._modules: dict[Path, ModuleType] = {}
        self._tried_out: set[Path] = set()
        #: by file and reader; failed ones are removed
        self._loads: dict[tuple[Path, Callable[[ModuleType], Any]], _Load] = {}

    def try_out(self, paths: Iterable[Path]) -> None:
        """Import files in a child process first, with this process's environment.

        Raises:
            EntryError: an import ends the process, or takes longer than ``seconds``.
            BundleRevisionUnavailableError: no process can be started now.
        """
        new = [path for path in dict.fromkeys(paths) if path not in self._tried_out]
        try:
            found = fatal_import(new, seconds=self.seconds)
        except OSError as error:
            message = f"No process can be started to try out the bundle's files: {error}"
            raise BundleRevisionUnavailableError(message, suggestion="Free memory, or processes.") from error
        if found is not None:
            path, problem = found
            raise EntryError(path, problem, IMPORT_HINT)
        self._tried_out.update(new)

    def load(self, path: Path, read: Callable[[ModuleType], T]) -> T:
        """Import a file before it is needed, and read it.

        Raises:
            EntryError: the file cannot be used, takes longer than ``seconds``, or raises anything,
                ``sys.exit()`` included.
        """
        outcome = self._outcome(path, read, self.seconds, Cancellation())
        if outcome is None:
            raise EntryError(path, _hangs(self.seconds), IMPORT_HINT)
        error = outcome.error
        if isinstance(error, Exception | SystemExit) and not isinstance(error, GoondanError):
            raise import_failure(path, error) from error
        return outcome.get()

    def load_for_call(
        self, path: Path, read: Callable[[ModuleType], T], *, seconds: float, cancellation: Cancellation
    ) -> T:
        """Import a file when a call needs it, and read it.

        The limit counts from the start of the import, which may have been for another call.

        Raises:
            EntryError: the file is missing, is not Python, or lacks what is read from it.
            ToolTimeoutError: it takes too long.
            GoondanError: the error that the call was cancelled with.
            Exception: any error of the file's own code.
        """
        seconds = min(seconds, self.seconds)
        outcome = self._outcome(path, read, seconds, cancellation)
        if outcome is None:
            raise cancellation.error or ToolTimeoutError(
                f"The tool cannot be run: {path}: {_hangs(seconds)}.", suggestion=IMPORT_HINT
            )
        return outcome.get()

    def _outcome(
        self, path: Path, read: Callable[[ModuleType], T], seconds: float, cancellation: Cancellation
    ) -> FunctionOutcome[T] | None:
        """Return the outcome of an import; ``None`` if it takes too long or the call is cancelled."""
        key = (path, read)
        with self._lock:
            load = self._loads.get(key) or self._loads.setdefault(key, _Load(lambda: self._read(path, read)))
        if not load.ends(seconds, cancellation):
            return None
        outcome: FunctionOutcome[T] = load.outcome.result()
        if outcome.error is not None:
            with self._lock:
                if self._loads.get(key) is load:
                    del self._loads[key]
        return outcome

    def _read(self, path: Path, read: Callable[[ModuleType], T]) -> T:
        module = self._modules.get(path) or import_entry(path)
        value = read(module)
        self._modules.setdefault(path, module)
        return value


def _hangs(seconds: float) -> str:
    return f"importing the file does not end within {seconds:g} s"
