import os
from typing import Any

from goondan_tasks.tool_api import ToolContext, ToolHandler


def cook(ctx: ToolContext, input: dict[str, Any]) -> dict[str, Any]:
    return {"dish": input.get("dish", "leftovers"), "pid": os.getpid()}


def burn(ctx: ToolContext, input: dict[str, Any]) -> None:
    raise ValueError("it burns")


def context(ctx: ToolContext, input: dict[str, Any]) -> dict[str, Any]:
    return {
        "turnId": ctx.turn_id,
        "instanceKey": ctx.instance_key,
        "traceId": ctx.trace_id,
        "toolCallId": ctx.tool_call_id,
        "message": ctx.message.to_wire(),
    }


handlers: dict[str, ToolHandler] = {"cook": cook, "burn": burn, "context": context}
