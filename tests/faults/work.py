"""Submitting work whose handler leaves its lines in a log."""

from typing import Any

from goondan_tasks.client import Client, PendingCall
from tests.faults.crowd import AGENT
from tests.faults.handler_log import HandlerLog


def submit_work(
    client: Client, log: HandlerLog, tool: str = "once__sync", *, number: int = 0, seconds: float = 0.0
) -> PendingCall:
    """Submit one numbered call of ``tests/bundles/proving-ground``."""
    return client.submit(AGENT, tool, work_args(log, number, seconds))


def work_args(log: HandlerLog, number: int, seconds: float) -> dict[str, Any]:
    """Return the arguments of such a call."""
    return {"log": str(log.path), "number": number, "seconds": seconds}
