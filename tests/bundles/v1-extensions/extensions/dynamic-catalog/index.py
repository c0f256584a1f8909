"""002 §9.3: adds the dynamic tools to the catalog of each Step."""

from dataclasses import replace


async def register(api):
    async def add_dynamic_tools(ctx):
        catalog = [*ctx.tool_catalog]

        for dynamic_tool in ctx.instance.dynamic_tools:
            catalog.append(
                {
                    "name": dynamic_tool.name,
                    "description": dynamic_tool.description,
                    "parameters": dynamic_tool.parameters,
                    "source": {"type": "extension", "name": api.extension.metadata.name},
                }
            )

        return replace(ctx, tool_catalog=catalog)

    api.pipelines.mutate("step.tools", add_dynamic_tools)
