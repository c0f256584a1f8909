"""The Tool Catalog and what providers make of it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.bundle import build_catalog, load_bundle
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog, ToolSource
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

SOURCE = ToolSource(type="config", name="echo")


def catalog(*names: str) -> ToolCatalog:
    return ToolCatalog(tuple(CatalogItem(name=name, source=SOURCE) for name in names))


@pytest.mark.requirement(
    "catalog.item.name",
    "catalog.item.description",
    "catalog.item.parameters",
    "catalog.item.source",
    "bundle.export.description",
)
def test_catalog_item_shows_its_exports_declaration(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{AGENT}"}))

    assert build_catalog(bundle, "coder").to_wire() == [
        {
            "name": "echo__run",
            "description": "Echoes.",
            "parameters": {"type": "object"},
            "source": {"type": "config", "name": "echo"},
        }
    ]


def test_fields_missing_in_export_are_missing_in_item() -> None:
    assert catalog("echo__run").to_wire() == [
        {"name": "echo__run", "source": {"type": "config", "name": "echo"}}
    ]


def test_catalog_is_sequence_that_finds_tools_by_name() -> None:
    tools = catalog("b__x", "a__x")

    assert tools.names == ("b__x", "a__x")
    assert [item.name for item in tools] == ["b__x", "a__x"]
    assert (len(tools), tools[1].name, tools[:1][0].name) == (2, "a__x", "b__x")
    assert tools.item("a__x") is tools[1]
    assert tools.item("gone__x") is None


def test_of_two_items_of_one_name_last_counts() -> None:
    first = CatalogItem(name="a__x", description="first", source=SOURCE)
    last = CatalogItem(name="a__x", description="last", source=SOURCE)

    assert list(ToolCatalog((first, last))) == [last]


@pytest.mark.requirement("tool.name.verbatim")
def test_each_provider_gets_its_own_form() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    tools = ToolCatalog((CatalogItem(name="a__x", description="Finds.", parameters=schema, source=SOURCE),))

    assert tools.to_openai() == [
        {"type": "function", "function": {"name": "a__x", "description": "Finds.", "parameters": schema}}
    ]
    assert tools.to_anthropic() == [{"name": "a__x", "description": "Finds.", "input_schema": schema}]
    assert tools.to_mcp() == [{"name": "a__x", "description": "Finds.", "inputSchema": schema}]


def test_providers_always_get_object_schema() -> None:
    assert catalog("a__x").to_anthropic() == [
        {"name": "a__x", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_object_union_is_wrapped_for_models_not_mcp() -> None:
    union = {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}
    tools = ToolCatalog((CatalogItem(name="a.x", parameters=union, source=SOURCE),))

    [openai], [anthropic], [mcp] = tools.to_openai(), tools.to_anthropic(), tools.to_mcp()

    assert openai["function"]["parameters"] == anthropic["input_schema"]
    assert anthropic["input_schema"]["properties"] == {"arguments": {"type": "object", **union}}
    assert mcp["inputSchema"] == {"type": "object", "properties": {}, **union}
    assert tools.original_args(anthropic["name"], {"arguments": {"a": 1}}) == {"a": 1}
    assert tools.original_args("made__up", {"arguments": {"a": 1}}) == {"arguments": {"a": 1}}


@pytest.mark.parametrize("name", ["slack.postMessage", "a__" + "x" * 62, "도구__실행", "a b"])
def test_provider_forbidden_name_is_mapped_both_ways(name: str) -> None:
    tools = catalog("a__x", name)

    short = tools.provider_name(name)

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", short)
    assert tools.original_name(short) == name
    assert [tool["name"] for tool in tools.to_anthropic()] == ["a__x", short]
    assert [tool["name"] for tool in tools.to_mcp()] == ["a__x", name]


def test_provider_name_does_not_depend_on_other_tools() -> None:
    assert catalog("slack.post").provider_name("slack.post") == catalog(
        "z", "slack.post", "a.b"
    ).provider_name("slack.post")


def test_mapped_name_yields_to_tool_bearing_it() -> None:
    taken = catalog("a.b").provider_name("a.b")

    tools = catalog("a.b", taken)

    assert tools.original_name(taken) == taken
    assert tools.provider_name(taken) == taken
    assert tools.original_name(tools.provider_name("a.b")) == "a.b"


def test_name_unknown_to_catalog_stays_unchanged() -> None:
    assert catalog("a.b").original_name("made__up") == "made__up"
    assert catalog("a.b").provider_name("made.up") == "made.up"


@given(st.lists(st.text(min_size=1, max_size=80), max_size=8))
def test_every_name_survives_way_to_provider_and_back(names: list[str]) -> None:
    tools = catalog(*names)

    shorts = [tools.provider_name(name) for name in tools.names]

    assert len(set(shorts)) == len(tools)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", short) for short in shorts)
    assert [tools.original_name(short) for short in shorts] == list(tools.names)
