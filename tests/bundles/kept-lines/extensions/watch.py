"""Middlewares that log around calls, Steps and Turns."""

import logging
from typing import Any

from goondan_tasks.extension_api import ExtensionApi


def register(api: ExtensionApi) -> None:
    async def around(ctx: Any) -> Any:
        api.logger.info("watch.begins", tool=ctx.tool_name, around=ctx.tool_call_id)
        try:
            return await ctx.next()
        finally:
            logging.getLogger("watch").info("watch ends around %s", ctx.tool_call_id)

    api.pipeline.register("toolCall", around)
