"""Let the worker send no mark "started" any more: its claimed calls wait, and nothing of them begins."""

import threading
from typing import Any

from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def hold_marks(ctx: ToolContext, input: JsonObject) -> None:
    def start(*_: Any) -> None:
        threading.Event().wait()

    setattr(Ledger, "start", start)  # noqa: B010 - a method


handlers: dict[str, ToolHandler] = {"hold-marks": hold_marks}
