"""Stands at every point there is, and writes down in the instance's memory what it sees."""

import dataclasses


def register(api, config):
    pages = api.extension.spec.config["pages"]
    assert config["pages"] == pages and api.extension.metadata.labels == {"tier": "notes"}

    def note(line):
        api.set_state({"lines": [*api.get_state().get("lines", []), line]})

    def mutating(point):
        def noted(ctx):
            note(point)

        api.pipelines.mutate(point, noted, id=point)

    for point in ("step.pre", "step.config", "toolCall.pre", "toolCall.post"):
        mutating(point)

    def turn_begins(ctx):
        note(f"turn.pre {ctx.event.type} {ctx.turn.messages}")

    def tools(ctx):
        note("step.tools")
        said = ctx.turn.origin or {}
        ctx.tool_catalog = [
            dataclasses.replace(item, description="Hidden.") if item.name == said.get("hide") else item
            for item in ctx.tool_catalog
            if item.name != said.get("drop")
        ]

    def blocks(ctx):
        note("step.blocks")
        ctx.blocks.append({"type": "custom.almanac", "data": {"agent": ctx.agent.name, "step": ctx.step.index}})

    def step_ended(ctx):
        note("step.post " + " ".join(f"{name}:{one.status}" for name, one in ctx.tool_results.items()))

    def turn_ended(ctx):
        note("turn.post")
        lines, roles = api.get_state()["lines"], [message["role"] for message in ctx.turn.messages]
        return dataclasses.replace(ctx, result={"answer": ctx.result, "lines": lines, "roles": roles})

    def execute(ctx, next):
        note("toolCall.exec")
        return next(ctx)

    api.pipelines.mutate("turn.pre", turn_begins)
    api.pipelines.mutate("step.tools", tools)
    api.pipelines.mutate("step.blocks", blocks)
    api.pipelines.mutate("step.post", step_ended)
    api.pipelines.mutate("turn.post", turn_ended)
    api.pipelines.wrap("toolCall.exec", execute)

    def read(ctx, input):
        return {
            "lines": api.get_state().get("lines", []),
            "tools": [item.name for item in api.tools.list()],
            "declared": api.tools.get("dome.turn").tool.name,
            "dynamic": api.tools.get("almanac.read").tool,
        }

    api.tools.register({"name": "almanac.read", "handler": read})
