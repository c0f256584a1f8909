"""Layers that write down the order in which they are passed, and one that does what a call's notes ask for."""

import asyncio


def register(api):
    def frame(name):
        async def layer(ctx):
            ctx.metadata.setdefault("order", []).append(f"{name} in")
            result = await ctx.next()
            ctx.metadata["order"].append(f"{name} out")
            return result

        return layer

    async def told(ctx):
        result = await ctx.next()
        return result.model_copy(update={"output": {"order": ctx.metadata["order"], "got": result.output}})

    async def asked(ctx):
        note = ctx.args.get("notes")
        if note == "answer":
            return {"answered": ctx.tool_name, "id": ctx.tool_call_id}
        if note == "twice":
            await ctx.next()
            return await ctx.next()
        if note == "change":
            ctx.args = {"colour": "green", "coats": 2}
        if note == "break":
            ctx.args = {"colour": "green", "coats": "two"}
        if note == "raise":
            raise KeyError("tenant")
        if note == "raise after":
            await ctx.next()
            raise KeyError("tenant")
        if note == "hang":
            await asyncio.sleep(3600)
        if note == "invent":
            return (await ctx.next()).model_copy(update={"status": "splendid"})
        if note == "set":
            return {1, 2}
        if note == "forget":
            ctx.next().close()
            return None
        return await ctx.next()

    async def rescued(ctx):
        try:
            return await ctx.next()
        except ValueError as error:
            return {"rescued": str(error)}

    api.pipeline.register("toolCall", frame("first"), priority=10)
    api.pipeline.register("toolCall", frame("second"), priority=5)
    api.pipeline.register("toolCall", frame("third"), priority=10)
    api.pipeline.register("toolCall", told, priority=1)
    api.pipeline.register("toolCall", asked, priority=20)
    api.pipeline.register("toolCall", rescued, priority=0)
