"""002 §5.4: logs calls on all three points of their way."""

import time


async def register(api):
    async def pre(ctx):
        api.logger.debug(f"Tool 호출: {ctx.tool_call.name}", ctx.tool_call.arguments)
        return ctx

    async def execute(ctx, next):
        start_time = time.monotonic()
        try:
            result = await next(ctx)
            elapsed = round((time.monotonic() - start_time) * 1000)
            api.logger.debug(f"Tool 완료: {ctx.tool_call.name} ({elapsed}ms)")
            return result
        except Exception as error:
            api.logger.error(f"Tool 실패: {ctx.tool_call.name}", error)
            raise

    async def post(ctx):
        if ctx.tool_result and ctx.tool_result.status == "error":
            api.events.emit("tool.error", {"toolName": ctx.tool_call.name, "error": ctx.tool_result.error})
        return ctx

    api.pipelines.mutate("toolCall.pre", pre)
    api.pipelines.wrap("toolCall.exec", execute)
    api.pipelines.mutate("toolCall.post", post)
