"""The Tool "text": each export that goondan.yaml names has its handler here."""

from goondan_tasks.tool_api import JsonObject, ToolContext


def count(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Count words and characters; what is returned is the tool's output, as JSON."""
    text = input["text"]
    return {"words": len(text.split()), "characters": len(text)}


handlers = {"count": count}
