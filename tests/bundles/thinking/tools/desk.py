"""What agents that think are given to do."""

import asyncio
from typing import Any


def echo(ctx: Any, input: dict[str, Any]) -> Any:
    return input.get("text")


def message(ctx: Any, input: dict[str, Any]) -> Any:
    return {"said": ctx.message.data, "source": ctx.message.source, "id": ctx.tool_call_id}


def begin(ctx: Any, input: dict[str, Any]) -> Any:
    return ctx.pending("job-1", {"place": 3})


def wipe(ctx: Any, input: dict[str, Any]) -> Any:
    return {"wiped": input}


async def hang(ctx: Any, input: dict[str, Any]) -> Any:
    await asyncio.sleep(600)


def learn(ctx: Any, input: dict[str, Any]) -> Any:
    return "see the extension"


handlers = {
    "echo": echo,
    "message": message,
    "begin": begin,
    "wipe": wipe,
    "hang": hang,
    "learn": learn,
}
