"""Workers that must not run: they log why, and exit."""

import contextlib
import errno
from collections.abc import Iterator
from typing import NoReturn

import structlog

from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, GoondanError

logger = structlog.get_logger(__name__)

EXIT_CONFIGURATION = 3
EXIT_BROKER_UNREACHABLE = 5


def refuse(error: GoondanError) -> NoReturn:
    """Log why this worker must not run, and raise SystemExit."""
    logger.critical("worker.refused", code=error.code, reason=error.message, what_to_do=error.suggestion)
    is_away = isinstance(error, BrokerUnreachableError)
    raise SystemExit(EXIT_BROKER_UNREACHABLE if is_away else EXIT_CONFIGURATION) from error


@contextlib.contextmanager
def refusing_without_threads() -> Iterator[None]:
    """Let the worker end at its start if the system has no thread or process left for one that it needs.

    Raises:
        SystemExit: it has none left.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not _is_shortage(error):
            raise
        refuse(
            ConfigError(
                f"The worker cannot start one of its threads or processes: {error}.",
                suggestion="Raise the limit of processes: `ulimit -u`, the container's pids limit, or "
                "TasksMax of its unit. A worker needs about 20, and one for each slot.",
            )
        )


def _is_shortage(error: RuntimeError | OSError) -> bool:
    if isinstance(error, OSError):  # of fork(2)
        return error.errno in {errno.EAGAIN, errno.ENOMEM}
    return "start new thread" in str(error)  # Python has no class for it
