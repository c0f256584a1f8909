"""What nobody may do unasked."""

import os
import time
from pathlib import Path

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def wipe(ctx: ToolContext, input: JsonObject) -> JsonObject:
    if "log" in input:
        file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{input['disk']}\n".encode())
        os.close(file)
    return {"wiped": input["disk"]}


def mount(ctx: ToolContext, input: JsonObject) -> JsonObject:
    mounted = wipe(ctx, input)["wiped"]
    while not Path(input["until"]).exists():
        time.sleep(0.01)
    return {"mounted": mounted}


def look(ctx: ToolContext, input: JsonObject) -> str:
    return "gold"


handlers: dict[str, ToolHandler] = {"wipe": wipe, "look": look, "mount": mount, "mount-once": mount}
