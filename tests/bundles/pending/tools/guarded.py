"""What nobody may do unasked."""

import os

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def wipe(ctx: ToolContext, input: JsonObject) -> JsonObject:
    if "log" in input:
        file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{input['disk']}\n".encode())
        os.close(file)
    return {"wiped": input["disk"]}


def look(ctx: ToolContext, input: JsonObject) -> str:
    return "gold"


handlers: dict[str, ToolHandler] = {"wipe": wipe, "look": look}
