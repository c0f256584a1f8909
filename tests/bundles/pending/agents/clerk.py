"""An agent that begins a job in one Turn, and hears how it ended in another."""

import json
import os
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent, AgentHandler


async def handle_event(ctx: AgentContext, event: AgentEvent) -> Any:
    if event.type != "toolCall.completed":
        result = await ctx.call(event.input["tool"], event.input["args"])
        return result.to_wire()
    file = os.open(ctx.workdir / "heard", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps({**event.input, "correlationId": ctx.correlation_id}).encode() + b"\n")
    os.close(file)
    return None


handle: AgentHandler = handle_event
