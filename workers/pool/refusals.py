"""A worker that must not run: it says why in one line, and ends as the command line would."""

from typing import NoReturn

import structlog

from broker_config.settings import Settings
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.errors import BrokerUnreachableError, ConfigError, GoondanError, OAuthStoreError
from workers.runtime import WorkerRuntime, process_runtime

logger = structlog.get_logger(__name__)

EXIT_CONFIGURATION = 3
EXIT_BROKER_UNREACHABLE = 5


def runtime_or_refusal() -> WorkerRuntime:
    """Return this process's runtime.

    Raises:
        SystemExit: the bundle is not valid, or Redis cannot be reached, which were well when the command line
            looked, a moment before; or the OAuth store cannot be used.
    """
    try:
        with broker_errors(Settings.load().redis_url):
            return process_runtime()
    except (ConfigError, BrokerUnreachableError, OAuthStoreError) as error:
        refuse(error)


def refuse(error: GoondanError) -> NoReturn:
    """Log why this worker must not run, and end it.

    Raises:
        SystemExit: always.
    """
    logger.critical("worker.refused", code=error.code, reason=error.message, what_to_do=error.suggestion)
    is_away = isinstance(error, BrokerUnreachableError)
    raise SystemExit(EXIT_BROKER_UNREACHABLE if is_away else EXIT_CONFIGURATION) from error
