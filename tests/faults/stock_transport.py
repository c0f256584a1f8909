"""Celery's command line with kombu's own Redis transport beside ours, under the scheme ``stockredis``."""

from kombu.transport import TRANSPORT_ALIASES

from goondan_tasks.celery import main

SCHEME = "stockredis"


def know_stock_transport() -> None:
    """Let this process reach ``stockredis://`` brokers; ours takes only ``redis`` and ``rediss``."""
    TRANSPORT_ALIASES[SCHEME] = "kombu.transport.redis:Transport"


if __name__ == "__main__":
    know_stock_transport()
    main()
