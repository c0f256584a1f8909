"""A ledger on a Redis in memory."""

from tests.unit.goondan_tasks.ledger.conftest import ledger, redis

__all__ = ["ledger", "redis"]
