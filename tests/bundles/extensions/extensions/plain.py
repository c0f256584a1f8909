"""Plain middlewares, which may block."""

import threading
import time


def register(api):
    def first(ctx):
        time.sleep(0.001)
        ctx.metadata["thread"] = threading.current_thread().name
        api.state.set("seen", ctx.tool_name)
        return ctx.next()

    def second(ctx):
        if ctx.args.get("notes") == "forget":
            ctx.next().close()
            return None
        return ctx.next()

    api.pipeline.register("toolCall", first)
    api.pipeline.register("toolCall", second)
