"""Ask the helper, and say what it answered; a line outside Redis tells of every beginning."""

import os
import time
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    file = os.open(event.input["askers"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"start {event.input['number']} {os.getpid()} {time.time():.6f}\n".encode())
    os.close(file)
    return {"helped": ctx.runtime.request("helper", {"input": event.input}).response}
