"""Answers of servers with malformed parts."""

import asyncio
import json
from typing import Any

import pytest
from mcp_types import ListToolsResult

from goondan_tasks.contract.messages import JsonObject
from workers.mcp.answers import MAX_LIST_CHARACTERS, MAX_PAGES, MAX_TOOLS, Listing, ToolLists

ANY: JsonObject = {"type": "object"}
GOOD: JsonObject = {"name": "good", "inputSchema": ANY}
VERSION = "2025-06-18"


class Server:
    """Answers requests with prepared results, one for each cursor."""

    def __init__(self, *pages: JsonObject) -> None:
        self.pages = pages
        self.asked: list[int] = []

    async def send(self, method: str, params: Any) -> JsonObject:
        number = int((params or {}).get("cursor") or 0)
        self.asked.append(number)
        return self.pages[number % len(self.pages)]


def listed(server: Server, version: str = VERSION) -> Listing:
    lists = ToolLists(server.send, lambda: version)

    async def page_of(cursor: str | None) -> ListToolsResult:
        return ListToolsResult.model_validate(await lists.send("tools/list", {"cursor": cursor}))

    return asyncio.run(lists.read(page_of))


def tools_of(odd: Any, version: str = VERSION) -> tuple[list[JsonObject], dict[str, str]]:
    listing = listed(Server({"tools": [GOOD, odd]}), version)
    wire = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listing.tools]
    return wire, dict(listing.left_out)


@pytest.mark.parametrize(
    ("odd", "schema"),
    [
        ({}, ANY),
        ({"inputSchema": None}, ANY),
        ({"inputSchema": {"properties": {"x": {}}}}, {"type": "object", "properties": {"x": {}}}),
        ({"inputSchema": {"anyOf": [ANY]}}, {"type": "object", "anyOf": [ANY]}),
        ({"inputSchema": {"type": ["object", "null"]}}, ANY),
        ({"inputSchema": {"type": "object", "required": "a"}}, ANY),
    ],
)
def test_tool_whose_schema_has_clear_meaning_is_repaired(odd: JsonObject, schema: JsonObject) -> None:
    tools, left_out = tools_of({"name": "odd", **odd})

    assert tools == [GOOD, {"name": "odd", "inputSchema": schema}]
    assert left_out == {}


@pytest.mark.parametrize("schema", ["x", [], 7, {"type": "string"}, {"type": ["array"]}, {"type": 7}])
def test_tool_with_non_object_schema_is_omitted(schema: Any) -> None:
    tools, left_out = tools_of({"name": "odd", "inputSchema": schema})

    assert tools == [GOOD]
    assert left_out == {"odd": "its inputSchema is not the schema of an object"}


@pytest.mark.parametrize("odd", [None, "odd", [], {}, {"name": 7, "inputSchema": ANY}])
def test_omitted_nameless_tool_is_reported_by_number(odd: Any) -> None:
    assert tools_of(odd) == ([GOOD], {"number 2": "it has no name"})


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    "field",
    [
        {"title": 7},
        {"description": []},
        {"annotations": {"readOnlyHint": "perhaps"}},
        {"annotations": "x"},
        {"icons": "x"},
        {"outputSchema": "x"},
        {"_meta": 1},
    ],
    ids=json.dumps,
)
def test_invalid_field_of_tool_costs_only_that_field(field: JsonObject, version: str) -> None:
    base = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if version > "2026" else {}
    listing = listed(Server({**base, "tools": [{**GOOD, "description": "Text.", **field}]}), version)

    [tool] = listing.tools
    assert (tool.name, tool.input_schema) == ("good", ANY)
    assert tool.description == (None if "description" in field else "Text.")
    assert tool.annotations is None


@pytest.mark.parametrize("cursor", ["", None, 7, "0"])
def test_cursor_that_leads_nowhere_ends_list(cursor: Any) -> None:
    server = Server({"tools": [GOOD], "nextCursor": cursor})

    assert len(listed(server).tools) == (2 if cursor == "0" else 1)
    assert len(server.asked) <= 2


def test_pages_without_end_are_read_up_to_limit() -> None:
    class Endless(Server):
        async def send(self, method: str, params: Any) -> JsonObject:
            number = int((params or {}).get("cursor") or 0)
            self.asked.append(number)
            return {"tools": [], "nextCursor": str(number + 1)}

    server = Endless()

    assert listed(server).tools == []
    assert len(server.asked) == MAX_PAGES


@pytest.mark.parametrize("count", [MAX_TOOLS + 1, 60], ids=["number", "size"])
def test_tools_beyond_limits_are_left_out(count: int) -> None:
    filler = "x" * (MAX_LIST_CHARACTERS // 20 if count == 60 else 1)
    tools = [{**GOOD, "name": f"t{number}", "description": filler} for number in range(count)]
    server = Server({"tools": tools, "nextCursor": "1"})

    listing = listed(server)

    assert 0 < len(listing.tools) < count
    assert f"t{len(listing.tools)}" in listing.left_out
    assert server.asked == [0]


def result_of(answer: JsonObject, version: str = VERSION) -> JsonObject:
    lists = ToolLists(Server(answer).send, lambda: version)
    return asyncio.run(lists.send("tools/call", {}))


TEXT = {"type": "text", "text": "done"}


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"type": "video", "data": "x"},
            "[A part of type 'video' is left out: this version does not know its type.]",
        ),
        ({"type": "image"}, "[A part of type 'image' is left out: it is not valid.]"),
        ({"data": "x"}, "[A part of type 'None' is left out: this version does not know its type.]"),
        (7, "[A part of type 'int' is left out: this version does not know its type.]"),
        ("plain", "plain"),
        ({**TEXT, "annotations": {"priority": "high"}}, "done"),
    ],
)
def test_block_that_cannot_be_read_costs_only_itself(block: Any, text: str, version: str) -> None:
    answer = result_of({"content": [TEXT, block]}, version)

    assert answer["content"] == [TEXT, {"type": "text", "text": text}]


@pytest.mark.parametrize(
    ("answer", "readable"),
    [
        ({}, {"content": []}),
        ({"content": None}, {"content": []}),
        ({"content": "done"}, {"content": [TEXT]}),
        ({"content": TEXT}, {"content": [TEXT]}),
        ({"structuredContent": {"a": 1}}, {"content": [], "structuredContent": {"a": 1}}),
        ({"content": [TEXT], "structuredContent": [1]}, {"content": [TEXT]}),
        ({"structuredContent": [1]}, {"content": [{"type": "text", "text": "[1]"}]}),
        ({"content": [TEXT], "isError": "perhaps"}, {"content": [TEXT]}),
    ],
)
def test_result_is_read_as_far_as_valid(answer: JsonObject, readable: JsonObject) -> None:
    assert result_of(answer) == readable


@pytest.mark.parametrize(
    "answer", [{"content": [TEXT], "x-more": 1}, {"resultType": "input_required", "inputRequests": {}}]
)
def test_valid_result_passes_unchanged(answer: JsonObject) -> None:
    assert result_of(answer) is answer
