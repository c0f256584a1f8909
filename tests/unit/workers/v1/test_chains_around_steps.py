"""The way of one Step through the functions of the older version's extensions."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import StepContext, StepResult
from goondan_tasks.authoring.v1_api import (
    EffectiveConfig,
    Step,
    StepPipelineContext,
    SwarmInstance,
    Turn,
    V1CatalogItem,
)
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.catalog import CatalogItem, ToolSource
from goondan_tasks.contract.errors import MiddlewareError
from goondan_tasks.contract.names import STEP_TOOL
from workers.concurrency.event_loop import drive
from workers.turns.pipeline import Ranks
from workers.v1.chains import Mutator, V1Chains, around_step

ITEM = CatalogItem(name="a.b", description="A.", source=ToolSource(type="config", name="a"))


def made() -> StepPipelineContext:
    return StepPipelineContext(
        instance=SwarmInstance("swarm-k", "k", "swarm"),
        swarm=None,  # type: ignore[arg-type]  # nobody looks
        agent=None,  # type: ignore[arg-type]
        turn=Turn("t", "swarm-k", "coder"),
        step=Step("s", 0, "t"),
        effective_config=EffectiveConfig(None, None),  # type: ignore[arg-type]
        tool_catalog=[],
    )


def show(item: CatalogItem) -> V1CatalogItem:
    return V1CatalogItem(item.name, item.description, item.parameters, source=item.source)


def chain(*functions: Any) -> list[Mutator]:
    return [Mutator(f"ext.{function.__name__}", function, "ext") for function in functions]


def context() -> StepContext:
    return StepContext("coder", "k", "t", "trace", "s", 0, [ITEM])


async def core(step: StepContext) -> StepResult:
    return StepResult(metadata={"catalog": list(step.tool_catalog), "blocks": step.blocks})


def gone(*before: Any, after: Any = ()) -> dict[str, Any]:
    way = around_step(made, show, chain(*before), chain(*after))
    result: StepResult = asyncio.run(way(core)(context()))  # type: ignore[arg-type]
    return result.metadata


def test_without_functions_nothing_is_put_around_step() -> None:
    assert V1Chains(Ranks()).around_step(new_call("coder", STEP_TOOL, {}, {}), context()) is None


def test_unchanged_item_is_same_object() -> None:
    def pre(ctx: StepPipelineContext) -> None:
        pass

    [item] = gone(pre)["catalog"]
    assert item is ITEM


def test_added_dicts_are_items_to_next_function() -> None:
    def add(ctx: StepPipelineContext) -> StepPipelineContext:
        return replace(
            ctx, tool_catalog=[*ctx.tool_catalog, {"name": "c.d", "parameters": {"type": "object"}}]
        )

    def look(ctx: StepPipelineContext) -> None:
        seen.extend(item.name for item in ctx.tool_catalog)
        ctx.tool_catalog.append(V1CatalogItem("e.f"))

    seen: list[str] = []
    items = gone(add, look)["catalog"]
    assert seen == ["a.b", "c.d"]
    assert [(item.name, item.source.name) for item in items] == [("a.b", "a"), ("c.d", "ext"), ("e.f", "ext")]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (5, "a dict or a CatalogItem, not int"),
        (None, "not NoneType"),
        ({"description": "?"}, "name: is missing"),
        ({"name": 7}, "name: "),
        ({"name": "x", "parameters": []}, "parameters: "),
        ({"name": "x", "parametres": {}}, "no field 'parametres'. Did you mean 'parameters'"),
        (V1CatalogItem(5), "name: "),  # type: ignore[arg-type]
        (V1CatalogItem("x", parameters=[]), "parameters: "),  # type: ignore[arg-type]
        (V1CatalogItem("x", source="me"), "source: "),  # type: ignore[arg-type]
    ],
)
def test_non_tool_is_refused_naming_its_function(wrong: Any, reason: str) -> None:
    def leave(ctx: StepPipelineContext) -> None:
        ctx.tool_catalog.append(wrong)

    with pytest.raises(
        MiddlewareError, match=r"Middleware ext\.leave put something into the catalog that is not a tool"
    ) as info:
        gone(leave)
    assert reason in info.value.message


@pytest.mark.parametrize("change", [{"tool_catalog": None}, {"blocks": None}, {"tool_catalog": 5}])
def test_non_list_is_refused_naming_its_function(change: Any) -> None:
    def leave(ctx: StepPipelineContext) -> StepPipelineContext:
        return replace(ctx, **change)

    with pytest.raises(MiddlewareError, match=r"Middleware ext\.leave raised TypeError"):
        gone(leave)


def test_blocks_are_added_or_replaced() -> None:
    def add(ctx: StepPipelineContext) -> None:
        ctx.blocks.append({"type": "one"})

    def replaced(ctx: StepPipelineContext) -> StepPipelineContext:
        return replace(ctx, blocks=[*ctx.blocks, {"type": "two"}])

    assert gone(add, replaced)["blocks"] == [{"type": "one"}, {"type": "two"}]


def test_only_chains_with_async_functions_leave_thread() -> None:
    def plain(ctx: StepPipelineContext) -> None:
        pass

    async def later(ctx: StepPipelineContext) -> None:
        pass

    stays = around_step(made, show, chain(plain), chain(plain))(core)
    assert drive(stays(context())) is not None  # type: ignore[arg-type]
    moved = around_step(made, show, chain(plain), chain(later))(core)(context())
    assert drive(moved) is None  # type: ignore[arg-type]
    moved.close()  # type: ignore[attr-defined]


def test_step_that_fails_has_no_post() -> None:
    async def failing(step: StepContext) -> StepResult:
        raise KeyError("x")

    def post(ctx: StepPipelineContext) -> None:
        ran.append(1)

    ran: list[int] = []
    way = around_step(made, show, [], chain(post))(failing)
    with pytest.raises(KeyError):
        asyncio.run(way(context()))  # type: ignore[arg-type]
    assert ran == []


def test_post_sees_catalog_that_was_fixed() -> None:
    async def narrowing(step: StepContext) -> StepResult:
        step.tool_catalog = []
        return StepResult(({"id": "c1", "name": "a.b", "args": {"n": 1}},))

    def post(ctx: StepPipelineContext) -> None:
        seen.append((ctx.tool_catalog, [call.arguments for call in ctx.step.pending_tool_calls]))

    seen: list[Any] = []
    asyncio.run(around_step(made, show, [], chain(post))(narrowing)(context()))  # type: ignore[arg-type]
    assert seen == [([], [{"n": 1}])]
