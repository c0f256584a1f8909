"""The tools that extensions register."""

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from goondan_tasks.contract.catalog import CatalogItem, McpSource, ToolSource
from workers.tools.dynamic_tools import DynamicTool, DynamicTools, dynamic_tool


def tool(item: Any, policy: Any = None) -> DynamicTool:
    return dynamic_tool(
        item,
        lambda ctx, input: input,
        policy,
        extension="ext",
        entry_path=Path("/bundle/ext.py"),
    )


def test_item_without_source_comes_from_its_extension() -> None:
    made = tool({"name": "weather__get", "description": "Look.", "parameters": {"type": "object"}})

    assert made.item.source == ToolSource(type="extension", name="ext")
    assert made.registered.bound.export.description == "Look."
    assert not made.registered.is_async


def test_mcp_servers_item_keeps_source_and_schema() -> None:
    source = ToolSource(type="mcp", name="git", mcp=McpSource(extension_name="mcp", server_name="git"))
    parameters = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    made = tool(CatalogItem(name="git__log", parameters=parameters, source=source))

    assert made.item.to_wire()["source"]["mcp"] == {"extensionName": "mcp", "serverName": "git"}
    assert made.registered.arguments.faults({"c": 1})


def test_policy_counts_as_one_of_export() -> None:
    policy = {
        "timeoutSeconds": 5,
        "idempotent": True,
        "maxAttempts": 7,
        "retry": {"max": 2, "codes": ["E_X"]},
    }
    export = tool({"name": "a__b"}, policy).registered.bound.export

    assert (export.timeout_seconds, export.idempotent, export.max_attempts) == (5, True, 7)
    assert export.retry is not None
    assert (export.retry.max, export.retry.codes) == (2, ("E_X",))


def test_last_same_named_tool_wins_with_warning() -> None:
    tools = DynamicTools()
    with capture_logs() as logs:
        for name in ("a__b", "c__d", "a__b"):
            tools.add("coder", tool({"name": name, "description": name}))

    assert list(tools.of("coder")) == ["c__d", "a__b"]
    assert [(line["event"], line["tool"]) for line in logs] == [("tool.replaced", "a__b")]


def test_mcp_tools_come_last_in_start_independent_order() -> None:
    def of(server: str, name: str) -> DynamicTool:
        mcp = McpSource(extension_name="mcp", server_name=server)
        return tool(CatalogItem(name=name, source=ToolSource(type="mcp", name="mcp", mcp=mcp)))

    time, log, show = of("time", "time__now"), of("git", "git__log"), of("git", "git__show")
    late, early = tool({"name": "z__late"}), tool({"name": "a__early"})
    orders = []
    for arrivals in ([time, late, show, log, early], [late, log, show, early, time]):
        tools = DynamicTools()
        for one in arrivals:
            tools.add("coder", one)
        orders.append(list(tools.of("coder")))

    assert orders == [["z__late", "a__early", "git__log", "git__show", "time__now"]] * 2


def test_tool_goes_and_agents_do_not_mix() -> None:
    tools = DynamicTools()
    tools.add("coder", tool({"name": "a__b"}))
    seen = tools.version

    assert tools.remove("planner", "a__b") is False
    assert tools.remove("coder", "a__b") is True
    assert tools.remove("coder", "a__b") is False
    assert (tools.of("coder"), tools.version) == ({}, seen + 1)
