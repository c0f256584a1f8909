"""Logging: structured events on stderr, as text for people or as JSON lines for machines."""

import logging
import sys

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
    # nor do the MCP SDK's lines for each request, and uvicorn's about itself
    for chatty in ("mcp", "sse_starlette", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())


def _renderer(settings: Settings) -> structlog.typing.Processor:
    if settings.log_format == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
