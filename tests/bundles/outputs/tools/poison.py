"""Kill the worker."""

import os
import signal
from pathlib import Path
from typing import Any

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def drink(ctx: ToolContext, input: JsonObject) -> Any:
    if not Path(input["antidote"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"turnId": ctx.turn_id, "toolCallId": ctx.tool_call_id, "text": input.get("text")}


handlers: dict[str, ToolHandler] = {"drink": drink, "gulp": drink, "sip": drink}
