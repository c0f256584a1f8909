"""Tools that older extensions register."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.authoring.v1_api import ToolSource, V1CatalogItem
from goondan_tasks.contract.calls import new_call
from tests.unit.workers.runs import job_of
from workers.extensions.events import running
from workers.extensions.services import ExtensionTools, Owner
from workers.tools.dynamic_tools import DynamicTool, DynamicTools
from workers.v1.extension_api import V1Tools


def handler(ctx: Any, input: Any) -> Any:
    return input


class Shelf:
    """The ``api.tools`` of one extension, and what comes of it."""

    def __init__(self, declared: Mapping[str, Any] | None = None) -> None:
        self.tools = DynamicTools()
        owner = Owner("coder", "ext", Path("/bundle/ext.py"))
        own = ExtensionTools(owner, self.tools, lambda agent: declared)
        running.set(None)
        self.api = V1Tools(own, lambda: None)  # type: ignore[arg-type, return-value]  # nobody lists

    @property
    def only(self) -> DynamicTool:
        [tool] = self.tools.of("coder").values()
        return tool


@pytest.mark.requirement("v1.dynamic-register")
def test_tool_comes_as_one_object_with_its_handler() -> None:
    shelf = Shelf()
    parameters = {"type": "object", "required": ["city"]}
    item = {"name": "weather.get", "description": "Look.", "parameters": parameters, "handler": handler}
    shelf.api.register(item)

    tool = shelf.only
    assert tool.item.to_wire() == {
        "name": "weather.get",
        "description": "Look.",
        "parameters": parameters,
        "source": {"type": "extension", "name": "ext"},
    }
    assert (tool.registered.bound.name, tool.registered.bound.is_v1) == ("weather.get", True)
    assert tool.registered.arguments.faults({})
    assert item["handler"] is handler


@pytest.mark.parametrize("name", ["weather.get", "weather.getNow", "get", "a-b_c.d"])
def test_name_is_shown_as_it_stands(name: str) -> None:
    shelf = Shelf()
    shelf.api.register({"name": name, "handler": handler})
    assert shelf.only.registered.bound.name == name


def test_handler_may_be_given_apart() -> None:
    shelf = Shelf()
    shelf.api.register(V1CatalogItem("weather.get", source=None), handler)
    shelf.api.register({"name": "weather.set", "description": None, "parameters": None}, handler)
    assert [tool.item.source.name for tool in shelf.tools.of("coder").values()] == ["ext", "ext"]


def test_source_may_be_named() -> None:
    shelf = Shelf()
    shelf.api.register(V1CatalogItem("git.log", source=ToolSource(type="mcp", name="git")), handler)
    assert shelf.only.item.source.type == "mcp"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"name": "weather.get"}, "must be a function, not NoneType"),
        ({"name": "weather.get", "handler": "get"}, "must be a function, not str"),
        ({"name": "weather.get", "handler": lambda input: input}, r"cannot be called with \(ctx, input\)"),
        ({"handler": handler}, "is not valid"),
        ({"name": None, "handler": handler}, "is not valid"),
        ({"name": "", "handler": handler}, "not a valid name"),
        ({"name": "weather get", "handler": handler}, "not a valid name"),
        ({"name": ".get", "handler": handler}, "not a valid name"),
        ({"name": "날씨.보기", "handler": handler}, "not a valid name"),
        ({"name": "goondan__step", "handler": handler}, "reserved"),
        ({"name": "weather__get", "handler": handler}, "'weather__get': names with '__' belong"),
        ({"name": "a.b", "parameters": {"type": "objekt"}, "handler": handler}, "objekt"),
        ({"name": "a.b", "parameters": [], "handler": handler}, "is not valid"),
        ({"name": "a.b", "handle": handler}, "no field 'handle'"),
        ("weather.get", "a dict or a CatalogItem, not str"),
        (V1CatalogItem(5), "the item 5 is not valid: name: "),  # type: ignore[arg-type]
        (None, "a dict or a CatalogItem, not NoneType"),
    ],
)
def test_invalid_tool_is_refused(item: Any, reason: str) -> None:
    shelf = Shelf()
    with pytest.raises((ValueError, TypeError), match=reason):
        shelf.api.register(item)
    assert shelf.tools.of("coder") == {}


def test_handler_is_given_once() -> None:
    with pytest.raises(TypeError, match="given twice"):
        Shelf().api.register({"name": "a.b", "handler": handler}, handler)


def test_name_declared_by_agent_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match=r"'a\.b' is a tool that the Agent declares"):
        Shelf({"a.b": object()}).api.register({"name": "a.b", "handler": handler})


def test_tool_can_be_taken_away_again() -> None:
    shelf = Shelf()
    shelf.api.register({"name": "a.b", "handler": handler})
    assert shelf.api.unregister("a.b")
    assert not shelf.api.unregister("a.b")


def test_awkwardly_named_extension_brings_no_system_tools() -> None:
    shelf = Shelf()
    shelf.api.register({"name": "goondan", "handler": handler})
    assert shelf.only.registered.bound.tool.name != "goondan"


def test_tool_registered_in_turn_ends_with_turn() -> None:
    shelf = Shelf()
    shelf.api.register({"name": "a.b", "handler": handler})
    assert shelf.only.turn is None

    running.set(job_of(new_call("coder", "a.b", {}, {"instance_key": "k", "turn_id": "t"})))
    shelf.api.register({"name": "a.b", "handler": handler})
    running.set(None)

    [own] = shelf.tools.of("coder", ("k", "t")).values()
    assert own.turn == ("k", "t")
    assert shelf.only.turn is None
