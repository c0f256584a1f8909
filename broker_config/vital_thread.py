"""Threads without which a worker can do nothing, and must not look alive."""

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
    """Make a daemon thread whose end tells the process to stop, unless ``is_over()`` by then.

    It ends when ``target`` raises, which is a fault of ours.
    """

    def live() -> None:
        try:
            target()
        finally:
            if not is_over():
                logger.critical("the thread %s has died; this process can do nothing without it", name)
                os.kill(os.getpid(), signal.SIGTERM)

    return threading.Thread(target=live, name=name, daemon=True)
