"""Let the worker mark no call as started any more: what it claims waits, and nothing of it begins."""

import threading
from typing import Any

from goondan_tasks.authoring.tool_api import JsonObject, ToolContext, ToolHandler
from goondan_tasks.ledger.ledger import Ledger
from workers.job import Job
from workers.pool.lead import Lead


def wait_for_ever(*_: Any) -> None:
    threading.Event().wait()


def hold(lead: Lead, job: Job) -> None:
    """Keep the claim, and let another thread lead: this one would take no further call."""
    lead._unconfirmed[job.token] = job
    lead._replace(lead._leader)
    wait_for_ever()


def hold_marks(ctx: ToolContext, input: JsonObject) -> None:
    setattr(Ledger, "start", wait_for_ever)  # noqa: B010 - a method
    setattr(Lead, "_mark", hold)  # noqa: B010 - a method


handlers: dict[str, ToolHandler] = {"hold-marks": hold_marks}
