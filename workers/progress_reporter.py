"""The ``progress`` of a ToolContext: a handler may report often, and reports are written periodically."""

import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from goondan_tasks.contract.output import MOST_EARLIER, report_of, with_earlier
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.concurrency.watchdog import Watchdog

#: between two reports of one run, counted from the answer to the first
PAUSE_SECONDS = 0.2

Answered = Callable[[Any], object]
Post = Callable[[bytes, Answered], object]


class ProgressReporter:
    """Posts the first report of a run at once, then the latest after each pause, and the last one.

    A few earlier reports are sent along. No more than one post is under way, so that they do not pile up
    while Redis is away. One that ``waits`` posts nothing before :meth:`begin`: most calls are short, and
    their last report travels with their result.
    """

    __slots__ = ("_has_news", "_is_pausing", "_post", "_recent", "_watchdog")

    #: held for a moment; one for all reporters, as most runs report nothing
    _lock = threading.Lock()

    def __init__(self, post: Post, watchdog: Watchdog, *, waits: bool = False) -> None:
        self._post = post
        self._watchdog = watchdog
        #: the latest reports; made with the first one, as most runs report nothing
        self._recent: deque[bytes] | None = None
        self._has_news = False
        self._is_pausing = waits

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the run; see :class:`~goondan_tasks.authoring.tool_api.ReportProgress`."""
        report = report_of(done, total, KNOWN_SECRETS.hidden_in_answer(message))
        with self._lock:
            if self._recent is None:
                self._recent = deque(maxlen=MOST_EARLIER + 1)
            self._recent.append(report)
            self._has_news = True
            if self._is_pausing:
                return
            self._is_pausing = True
        self._post_news()

    def begin(self) -> None:
        """Post reports from now on, and the latest at once."""
        self._post_news()

    def last(self) -> bytes | None:
        """Return the last report, which the caller posts: the run has ended; ``None`` if it is posted."""
        return self._taken() if self._has_news else None

    def flush(self) -> None:
        """Post the last report at once: the run has ended."""
        news = self.last()
        if news is not None:
            self._post(news, lambda _: None)

    def _post_news(self) -> None:
        news = self._taken(pauses=True)
        if news is not None:
            self._post(news, lambda _: self._watchdog.watch(PAUSE_SECONDS, self._post_news))

    def _taken(self, *, pauses: bool = False) -> bytes | None:
        """Return the latest report with those before it; ``None`` if it has been posted."""
        with self._lock:
            is_new, self._has_news = self._has_news, False
            if pauses:
                self._is_pausing = is_new
            if not is_new or self._recent is None:
                return None
            return with_earlier(self._recent[-1], islice(self._recent, len(self._recent) - 1))
