"""The ``progress`` of a ToolContext: what a handler tells often is written now and then."""

import threading
from collections.abc import Callable
from typing import Any

from goondan_tasks.progress import report_of
from goondan_tasks.redaction import KNOWN_SECRETS
from workers.concurrency.watchdog import Watchdog

#: between two reports of one run, counted from the answer to the first
PAUSE_SECONDS = 0.2

Answered = Callable[[Any], object]
Post = Callable[[bytes, Answered], object]


class ProgressReporter:
    """One run's. It posts the first report at once, then at most one each pause, and the last one.

    Never more than one is under way: while Redis is away reports do not pile up.
    """

    __slots__ = ("_is_pausing", "_latest", "_post", "_watchdog")

    #: held for a moment; one for all, as most runs tell nothing
    _lock = threading.Lock()

    def __init__(self, post: Post, watchdog: Watchdog) -> None:
        self._post = post
        self._watchdog = watchdog
        self._latest: bytes | None = None
        self._is_pausing = False

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the run has come; see :class:`~goondan_tasks.tool_api.ReportProgress`."""
        report = report_of(done, total, KNOWN_SECRETS.hidden_in_answer(message))
        with self._lock:
            self._latest = report
            if self._is_pausing:
                return
            self._is_pausing = True
        self._post_latest()

    def flush(self) -> None:
        """Post at once what still waits: the run has ended."""
        if self._latest is not None:
            with self._lock:
                latest, self._latest = self._latest, None
            if latest is not None:
                self._post(latest, lambda _: None)

    def _post_latest(self) -> None:
        with self._lock:
            latest, self._latest = self._latest, None
            self._is_pausing = latest is not None
        if latest is not None:
            self._post(latest, lambda _: self._watchdog.watch(PAUSE_SECONDS, self._post_latest))
