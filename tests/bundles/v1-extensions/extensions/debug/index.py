"""002 §12.2: prints what it sees of a call."""

import time


async def register(api):
    async def debug(ctx, next):
        tool_call = ctx.tool_call

        print(
            "[Tool] 호출:",
            {
                "name": tool_call.name,
                "arguments": tool_call.arguments,
                "turnId": ctx.turn.id,
                "stepIndex": ctx.step.index,
            },
        )

        start_time = time.monotonic()
        result = await next(ctx)
        elapsed = round((time.monotonic() - start_time) * 1000)

        print(
            "[Tool] 완료:",
            {
                "name": tool_call.name,
                "status": ctx.tool_result and ctx.tool_result.status,
                "elapsed": f"{elapsed}ms",
            },
        )

        return result

    api.pipelines.wrap("toolCall.exec", debug)
