"""Leave a line when an event's handling starts and one when it ends, in a file outside Redis."""

import asyncio
import os
import time
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


def leave_line(event: AgentEvent, word: str) -> None:
    """Append ``word number pid time``: one write, so lines of many processes never mix."""
    line = f"{word} {event.input['number']} {os.getpid()} {time.time():.6f}\n"
    file = os.open(event.input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    os.close(file)


async def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    leave_line(event, "start")
    await asyncio.sleep(event.input["seconds"])
    leave_line(event, "end")
    return event.input["number"]
