"""An Extension of today, in one onion with an older one."""


def register(api):
    def opened(ctx):
        ctx.blocks.append({"type": "custom.shutter"})
        ctx.tool_catalog = [item for item in ctx.tool_catalog if item.name != "dome.jam"]
        return ctx.next()

    api.pipeline.register("step", opened)
