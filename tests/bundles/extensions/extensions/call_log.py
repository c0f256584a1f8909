"""The document's own example (003 §6.4)."""

import time


def register(api):
    async def logged(ctx):
        # before next(): check or change what comes
        api.logger.info(f"tool call: {ctx.tool_name}", args=ctx.args)

        started = time.monotonic()
        result = await ctx.next()
        elapsed = (time.monotonic() - started) * 1000

        # after next(): look at what came of it, or change it
        api.logger.info(f"tool done: {ctx.tool_name} ({elapsed:.0f} ms)")

        return result

    api.pipeline.register("toolCall", logged)
