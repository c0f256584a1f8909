"""Threads that a process cannot do without."""

import logging
import os
import signal
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def _never() -> bool:
    return False


def vital_thread(
    name: str, target: Callable[[], object], *, is_over: Callable[[], bool] = _never
) -> threading.Thread:
    """Make a daemon thread; if it ends before ``is_over()``, the process is told to stop.

    Otherwise the process would look alive without doing its work.
    """

    def run() -> None:
        try:
            target()
        finally:
            if not is_over():
                logger.critical("the thread %s has died; this process cannot work without it", name)
                os.kill(os.getpid(), signal.SIGTERM)

    return threading.Thread(target=run, name=name, daemon=True)
