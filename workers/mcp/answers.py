"""Answers of MCP servers before they are validated: what is malformed in one part costs only that part.

The SDK refuses a whole list because of one tool, and a whole result because of one block. Here a part that
cannot be used is repaired where its meaning is clear, else left out. Lists have limits.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types import CallToolResult, ListToolsResult, Tool, methods
from pydantic import ValidationError

from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import MAX_SCHEMA_CHARACTERS

#: the limits for the tools of one server, in number and in characters of JSON
MAX_TOOLS = 1_000
MAX_LIST_CHARACTERS = 1024 * 1024
#: further pages are not read
MAX_PAGES = 100
#: how many of the tools that are left out have their reason kept, since workers report them
_MOST_LEFT_OUT = 20
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 300
#: fields without which a tool can be called
_OPTIONAL = ("title", "description", "outputSchema", "annotations", "icons", "execution", "_meta")
_BLOCKS = ("text", "image", "audio", "resource_link", "resource")

SendRequest = Callable[..., Awaitable[JsonObject]]
ListPage = Callable[[str | None], Awaitable[ListToolsResult]]


@dataclass(slots=True)
class Listing:
    """A server's tools, and the reasons why others are left out, by name."""

    tools: list[Tool] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    _characters: int = 0
    _seen: int = 0

    def leave_out(self, tool: str, reason: str) -> None:
        """Note why a tool is left out."""
        if len(self.left_out) < _MOST_LEFT_OUT:
            self.left_out[tool[:_SHOWN_CHARACTERS]] = reason[:_REASON_CHARACTERS]

    def admit(self, tool: Any) -> JsonObject | None:
        """Return a tool as the server described it, or repaired; ``None`` if it is left out."""
        self._seen += 1
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            self.leave_out(f"number {self._seen}", "it has no name")
            return None
        size = len(json.dumps(tool))
        self._characters += size
        if self._seen > MAX_TOOLS or self._characters > MAX_LIST_CHARACTERS:
            limit = f"{MAX_TOOLS} tools and {MAX_LIST_CHARACTERS} characters"
            self.leave_out(tool["name"], f"the server's list is longer than {limit}")
            return None
        schema = _object_schema(tool.get("inputSchema"))
        if schema is None:
            self.leave_out(tool["name"], "its inputSchema is not the schema of an object")
            return None
        if size > MAX_SCHEMA_CHARACTERS:
            self.leave_out(tool["name"], f"its description has more than {MAX_SCHEMA_CHARACTERS} characters")
            return None
        return {**tool, "inputSchema": schema}

    @property
    def is_full(self) -> bool:
        return self._seen > MAX_TOOLS or self._characters > MAX_LIST_CHARACTERS


class ToolLists:
    """Reads the list of tools of one connection, whose requests go through :meth:`send`."""

    def __init__(self, send: SendRequest, version: Callable[[], str]) -> None:
        """``send`` sends a request and returns its result; ``version`` is the protocol's."""
        self._send = send
        self._version = version
        self._listing = Listing()

    async def send(self, method: str, params: Mapping[str, Any] | None, *rest: Any) -> JsonObject:
        """Send a request, and return its result with every part valid or left out."""
        result = await self._send(method, params, *rest)
        if method == "tools/list" and isinstance(result.get("tools"), list):
            return self._readable_list(result)
        if method == "tasks/get" and isinstance(result.get("result"), dict):
            return {**result, "result": self._readable_result(result["result"])}
        return self._readable_result(result) if method == "tools/call" else result

    async def read(self, page_of: ListPage) -> Listing:
        """Read all pages."""
        self._listing = listing = Listing()
        cursor: str | None = None
        cursors: set[str | None] = set()
        while cursor not in cursors and len(cursors) < MAX_PAGES and not listing.is_full:
            cursors.add(cursor)
            page = await page_of(cursor)
            listing.tools += page.tools
            if not page.next_cursor:
                break
            cursor = page.next_cursor
        return listing

    def _readable_list(self, result: JsonObject) -> JsonObject:
        tools = []
        for tool in result["tools"]:
            admitted = self._listing.admit(tool)
            if admitted is None:
                continue
            readable = self._readable_tool(result, admitted)
            if readable is None:
                self._listing.leave_out(admitted["name"], "it is not valid")
            else:
                tools.append(readable)
        cursor = result.get("nextCursor")
        return {**result, "tools": tools, "nextCursor": cursor if isinstance(cursor, str) else None}

    def _readable_tool(self, result: JsonObject, tool: JsonObject) -> JsonObject | None:
        """Return a tool without its invalid fields; ``None`` if it is not valid without them."""

        def is_valid(candidate: JsonObject) -> bool:
            whole = {**result, "tools": [candidate], "nextCursor": None}
            return self._is_valid("tools/list", whole, ListToolsResult)

        if is_valid(tool):
            return tool
        least = {"name": tool["name"], "inputSchema": tool["inputSchema"]}
        if not is_valid(least):
            least["inputSchema"] = {"type": "object"}  # the server checks its arguments, too
        kept = {key: tool[key] for key in _OPTIONAL if key in tool and is_valid({**least, key: tool[key]})}
        return {**least, **kept} if is_valid(least) else None

    def _readable_result(self, result: JsonObject) -> JsonObject:
        if result.get("resultType") not in (None, "complete"):
            return result  # it asks for input, or belongs to an extension of the protocol
        if self._is_result(result):
            return result
        # since 2026-07-28 results have a type
        least: JsonObject = {} if self._is_result({"content": []}) else {"resultType": "complete"}
        content = result.get("content")
        blocks = content if isinstance(content, list) else [] if content is None else [content]
        readable = {**result, **least, "content": [self._readable_block(least, block) for block in blocks]}
        for key in ("structuredContent", "isError", "_meta"):
            if key in result and not self._is_result({**least, "content": [], key: result[key]}):
                del readable[key]
                if key == "structuredContent" and not blocks:
                    readable["content"] = [_text(json.dumps(result[key], ensure_ascii=False))]
        return readable

    def _readable_block(self, least: JsonObject, block: Any) -> JsonObject:
        if isinstance(block, dict):
            if self._is_result({**least, "content": [block]}):
                return block
            plain = {key: value for key, value in block.items() if key not in ("annotations", "_meta")}
            if self._is_result({**least, "content": [plain]}):
                return plain
        if isinstance(block, str):
            return _text(block)
        kind = str(block.get("type") if isinstance(block, dict) else type(block).__name__)[:_SHOWN_CHARACTERS]
        fault = "it is not valid" if kind in _BLOCKS else "this version does not know its type"
        return _text(f"[A part of type {kind!r} is left out: {fault}.]")

    def _is_result(self, result: JsonObject) -> bool:
        return self._is_valid("tools/call", result, CallToolResult)

    def _is_valid(
        self, method: str, result: JsonObject, model: type[ListToolsResult] | type[CallToolResult]
    ) -> bool:
        try:
            methods.validate_server_result(method, self._version(), result)
            model.model_validate(result, by_name=False)
        except KeyError:  # the version does not restrict it further
            return True
        except ValidationError:
            return False
        return True


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _object_schema(schema: Any) -> JsonObject | None:
    """Return a schema with the type that MCP requires; ``None`` if it describes anything but objects."""
    if schema is None:
        return {"type": "object"}
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type", "object")
    if kind == "object":
        return schema if "type" in schema else {"type": "object", **schema}
    return {**schema, "type": "object"} if isinstance(kind, list) and "object" in kind else None
