"""One thread for work that is probably short: a thread for each piece would cost more than the work."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from workers.concurrency.threads import DaemonThreads, Work


class SharedThread:
    """Runs pieces of work one after another, on one of the pool's threads; none may raise.

    The watch calls :meth:`look` every few milliseconds while :attr:`is_busy`. If a piece has lasted
    since the look before, another thread takes over those behind it.
    """

    def __init__(self, threads: DaemonThreads, on_busy: Callable[[], object]) -> None:
        """``on_busy`` is called whenever work begins after a rest."""
        self._threads = threads
        self._on_busy = on_busy
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        #: the number of the thread that takes the next piece; it changes when another takes over
        self._turn = 0
        self.is_busy = False
        #: how many pieces have begun, and how many had at the last look
        self._begun = 0
        self._seen = 0

    def run(self, work: Work) -> None:
        """Run ``work`` after what is waiting."""
        with self._lock:
            self._waiting.append(work)
            if self.is_busy:
                return
            self.is_busy = True
        self._on_busy()
        self._threads.run(partial(self._run, self._turn))

    def look(self) -> None:
        """Let another thread go on if a piece of work has lasted since the last look."""
        with self._lock:
            is_lasting = self.is_busy and self._begun == self._seen
            self._seen = self._begun
            if not is_lasting:
                return
            self._turn += 1
            self.is_busy = bool(self._waiting)
            turn = self._turn
        if self.is_busy:
            self._threads.run(partial(self._run, turn))

    def _run(self, turn: int) -> None:
        while True:
            with self._lock:
                if turn != self._turn:
                    return
                if not self._waiting:
                    self.is_busy = False
                    return
                work = self._waiting.popleft()
                self._begun += 1
            work()
