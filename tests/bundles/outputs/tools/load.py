"""Return more than a result may carry."""

from typing import Any

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def text(ctx: ToolContext, input: JsonObject) -> str:
    of, characters = input.get("of", "x"), input["characters"]
    return (of * (characters // len(of) + 1))[:characters]


async def without_a_thread(ctx: ToolContext, input: JsonObject) -> str:
    return text(ctx, input)


def value(ctx: ToolContext, input: JsonObject) -> Any:
    return input["value"]


def shouts(ctx: ToolContext, input: JsonObject) -> Any:
    error = RuntimeError("m" * input["characters"])
    for name in ("code", "suggestion", "help_url"):
        setattr(error, name, "n" * input["characters"])
    raise error


handlers: dict[str, ToolHandler] = {
    "text": text,
    "async": without_a_thread,
    "value": value,
    "shouts": shouts,
}
