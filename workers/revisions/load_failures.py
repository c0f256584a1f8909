"""Revisions that could not be loaded a moment ago: a fetch that takes long is not tried for every call."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError

#: how long a failure stands before it is tried again
AGAIN_SECONDS = 5.0
#: how many are remembered
MOST = 64


@dataclass(frozen=True, slots=True)
class _Failure:
    """What is kept of an error: its traceback would keep all that was loaded by then."""

    at: float
    is_unavailable: bool
    message: str
    code: str
    suggestion: str | None

    @classmethod
    def of(cls, error: GoondanError, at: float) -> Self:
        is_unavailable = isinstance(error, BundleRevisionUnavailableError)
        return cls(at, is_unavailable, error.message, error.code, error.suggestion)

    def error(self) -> GoondanError:
        kind = BundleRevisionUnavailableError if self.is_unavailable else ConfigError
        return kind(self.message, code=self.code, suggestion=self.suggestion)


@dataclass(frozen=True, slots=True)
class LoadFailures:
    """The last failures by ref."""

    clock: Callable[[], float]
    _failed: dict[str, _Failure] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def noted(self, ref: str) -> Iterator[None]:
        """Try to load a revision in the block, and remember how that fails.

        Raises:
            GoondanError: it has failed a moment ago, and so the block is not entered, or fails now.
        """
        failure = self._failed.get(ref)
        if failure is not None and self.clock() - failure.at < AGAIN_SECONDS:
            raise failure.error()
        try:
            yield
        except GoondanError as error:
            self._note(ref, error)
            raise
        self.forget(ref)

    def forget(self, ref: str) -> None:
        """Let a revision be tried again at once."""
        with self._lock:
            self._failed.pop(ref, None)

    def _note(self, ref: str, error: GoondanError) -> None:
        with self._lock:
            self._failed.pop(ref, None)
            self._failed[ref] = _Failure.of(error, self.clock())
            while len(self._failed) > MOST:
                del self._failed[next(iter(self._failed))]
