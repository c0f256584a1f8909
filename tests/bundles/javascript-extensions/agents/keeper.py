from typing import Any


async def handle(ctx: Any, event: Any) -> Any:
    async with ctx.step() as step:
        results = await step.run(event.input["calls"])
    return {
        "tools": list(step.catalog.names),
        "descriptions": {item.name: item.description for item in step.catalog},
        "blocks": list(step.blocks),
        "results": [result.output for result in results],
        "metadata": step.result.metadata,
    }
