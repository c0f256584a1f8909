"""Where an agent's middlewares stand."""

from typing import Any

import pytest

from workers.extensions.pipelines import AgentPipelines


async def first(ctx: Any) -> Any:
    return await ctx.next()


async def second(ctx: Any) -> Any:
    return await ctx.next()


async def third(ctx: Any) -> Any:
    return await ctx.next()


def test_lower_priority_is_outer_then_registration_order_counts() -> None:
    pipelines = AgentPipelines()
    for middleware, priority in ((first, 10), (second, 5), (third, 10)):
        pipelines.register("coder", "toolCall", middleware, extension="ext", priority=priority)

    names = [layer.name for layer in pipelines.layers("coder", "toolCall")]

    assert names == ["ext.second", "ext.first", "ext.third"]


def test_points_and_agents_do_not_mix() -> None:
    pipelines = AgentPipelines()
    pipelines.register("coder", "step", first, extension="ext")

    assert pipelines.layers("coder", "toolCall") == ()
    assert pipelines.layers("planner", "step") == ()


@pytest.mark.parametrize("point", ["toolcall", "toolCall.pre", ""])
def test_unknown_point_is_refused_with_those_there_are(point: Any) -> None:
    with pytest.raises(ValueError, match="turn, step, toolCall"):
        AgentPipelines().register("coder", point, first, extension="ext")


@pytest.mark.parametrize("priority", ["10", 1.5, None, True])
def test_priority_is_whole_number(priority: Any) -> None:
    with pytest.raises(TypeError, match="priority"):
        AgentPipelines().register("coder", "toolCall", first, extension="ext", priority=priority)


def test_middleware_is_function() -> None:
    with pytest.raises(TypeError, match="not str"):
        AgentPipelines().register("coder", "toolCall", "first", extension="ext")  # type: ignore[arg-type]
