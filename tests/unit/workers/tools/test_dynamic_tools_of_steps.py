"""Which tools a Step begins with, and which the next one has besides."""

from pathlib import Path

from goondan_tasks.contract.catalog import CatalogItem, ToolSource
from goondan_tasks.history import StepTool
from workers.tools.dynamic_tools import DynamicTool, TurnTools, dynamic_tool


def item(name: str, description: str = "") -> CatalogItem:
    return CatalogItem(name=name, description=description, source=ToolSource(type="extension", name="ext"))


def tool(name: str, description: str = "") -> DynamicTool:
    return dynamic_tool(
        item(name, description),
        lambda ctx, input: input,
        None,
        extension="ext",
        entry_path=Path("/bundle/ext.py"),
        turn=("k", "t"),
    )


def carried(name: str, step_id: str = "first") -> StepTool:
    return StepTool(item=item(name, "carried"), step_id=step_id)


def names(tools: list[StepTool]) -> list[tuple[str, str]]:
    return [(one.item.name, one.step_id) for one in tools]


def test_carried_tools_keep_place_in_local_version() -> None:
    here = {"b__x": tool("b__x"), "c__x": tool("c__x", "here")}
    tools = TurnTools([item("a__x"), item("z__x")], here, [carried("c__x"), carried("d__x"), carried("a__x")])

    assert [(one.name, one.description) for one in tools.items()] == [
        ("a__x", "carried"),
        ("z__x", ""),
        ("c__x", "here"),
        ("d__x", "carried"),
        ("b__x", ""),
    ]


def test_tool_is_passed_on_with_registering_step() -> None:
    before = {"a__x": tool("a__x"), "b__x": tool("b__x"), "c__x": tool("c__x")}
    now = before | {"b__x": tool("b__x"), "d__x": tool("d__x")}
    tools = TurnTools([], before, [carried("b__x"), carried("c__x"), carried("e__x")])

    assert names(tools.passed_on("second", now, set())) == [
        ("b__x", "second"),
        ("c__x", "first"),
        ("e__x", "first"),
        ("a__x", "second"),
        ("d__x", "second"),
    ]


def test_tool_unregistered_by_step_is_not_passed_on() -> None:
    tools = TurnTools([], {"a__x": tool("a__x")}, [carried("a__x"), carried("b__x"), carried("c__x")])

    assert names(tools.passed_on("second", {}, {"a__x", "c__x"})) == [("b__x", "first")]
