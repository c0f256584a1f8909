"""Children that foreign code forks off with ``os.fork``, which must not come back into our code.

Such a child is a copy of the worker with its connections: it would take calls off the queues, answer the call
that forked it, or send its own commands between those of the worker. It may run its part of the handler, and
ends when it leaves it. ``multiprocessing`` ends its children itself.
"""

import os
import signal
import sys
import traceback
from types import TracebackType

_is_claimed = False
_is_fork = False


def claim_process() -> None:
    """Declare that this process runs calls: what it forks from now on are children of handlers.

    A child that itself runs calls, such as one of Celery's prefork pool, claims its own process.
    """
    global _is_claimed, _is_fork
    _is_claimed, _is_fork = True, False


def is_fork() -> bool:
    """Return whether this process was forked by foreign code."""
    return _is_fork


def end_fork() -> None:
    """End this process if it was forked by foreign code, which has just ended; else do nothing.

    The exit status is that of a program which ends in this way. Nothing else is done at its end: buffered
    output, for example, is the worker's, too.
    """
    if _is_fork:
        _end(*sys.exc_info())


def _end(kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        os._exit((error.code or 0) & 0xFF)
    if error is not None:
        text = "".join(traceback.format_exception(kind, error, where))
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode(errors="replace"))
    os._exit(0 if error is None else 1)


def _note_fork() -> None:
    global _is_fork
    if not _is_claimed:
        return
    _is_fork = True
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):  # the worker's drain is not its own
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


os.register_at_fork(after_in_child=_note_fork)
