"""Revisions that could not be loaded a moment ago: a fetch that takes long is not tried for every call."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from goondan_tasks.errors import GoondanError

#: how long a failure stands before it is tried again
AGAIN_SECONDS = 5.0
#: how many are remembered
MOST = 64


@dataclass(frozen=True, slots=True)
class LoadFailures:
    """The last failures by ref."""

    clock: Callable[[], float]
    _failed: dict[str, tuple[float, GoondanError]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def noted(self, ref: str) -> Iterator[None]:
        """Try to load a revision in the block, and remember how that fails.

        Raises:
            GoondanError: it has failed a moment ago, and so the block is not entered, or fails now.
        """
        at, error = self._failed.get(ref, (0.0, None))
        if error is not None and self.clock() - at < AGAIN_SECONDS:
            raise error.with_traceback(None)
        try:
            yield
        except GoondanError as failure:
            self._note(ref, failure)
            raise
        self._failed.pop(ref, None)

    def _note(self, ref: str, error: GoondanError) -> None:
        with self._lock:
            self._failed.pop(ref, None)
            self._failed[ref] = self.clock(), error
            while len(self._failed) > MOST:
                del self._failed[next(iter(self._failed))]
