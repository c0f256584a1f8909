"""Logging: structured events on stderr, as text for people or as JSON lines for machines."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from broker_config.settings import Settings
from goondan_tasks.redaction import hide_secrets


def configure_logging(settings: Settings) -> None:
    """Send everything that is logged in this process, by us and by libraries, to stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=())],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                hide_secrets,
                _renderer(settings),
            ],
        )
    )
    # Celery's line for each received message says nothing that our own line at its end does not
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    # nor do lines about each HTTP request, with addresses that may hold a key, and uvicorn's about itself
    for chatty in ("httpcore2", "httpx2", "mcp", "sse_starlette", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())


@contextmanager
def logging_for_a_while(settings: Settings) -> Iterator[None]:
    """Write what is logged with structlog to stderr, as :func:`configure_logging` does.

    A program that has configured structlog itself keeps what it has. Without either, structlog would print
    every traceback with the local variables of all its frames.
    """
    if _is_configured_by_program():
        yield
        return
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_secrets,
            _renderer(settings),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _is_configured_by_program() -> bool:
    if not structlog.is_configured():
        return False
    # who took the defaults for a while (capture_logs) leaves them configured
    theirs = structlog.get_config()
    structlog.reset_defaults()
    is_own = theirs != structlog.get_config()
    if is_own:
        structlog.configure(**theirs)
    return is_own


def _renderer(settings: Settings) -> structlog.typing.Processor:
    if settings.log_format == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
