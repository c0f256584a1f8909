"""An MCP server's tools as tools of an agent: their names, their schemas, and their results."""

import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection
from fnmatch import fnmatchcase
from typing import Any

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, TextContent, Tool

from goondan_tasks.authoring.extension_api import CatalogItem, ExtensionApi, McpSource, ToolSource
from goondan_tasks.authoring.tool_api import ToolContext, ToolHandler
from goondan_tasks.contract.errors import McpError, ToolError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import build_tool_name, is_name_part
from goondan_tasks.contract.output import LARGEST_CHUNK
from goondan_tasks.contract.schema import SchemaError, SchemaTooLargeError, compile_schema
from workers.mcp.answers import Listing
from workers.mcp.config import HttpServer, Secrets, StdioServer
from workers.mcp.suspended import RemoteTask
from workers.mcp.tasks import CreatedTask

#: calls a tool by the server's own name for it
Call = Callable[[str, JsonObject, ProgressFnT], Awaitable[CallToolResult | CreatedTask]]
#: receives each list of a server's tools, and the function that calls them
Show = Callable[[Listing, Call], object]

_FORBIDDEN = re.compile(r"[^A-Za-z0-9-]+")
_DIGEST_LENGTH = 8


def full_names(server: str, tools: Collection[str]) -> dict[str, str]:
    """Map the full name of each tool to the server's own, in the order of ``tools``.

    Valid names (003 §3.2) stay as they are; others get a readable form with a digest that is long enough to
    be unique.
    """
    parts = {tool: tool for tool in tools if is_name_part(tool)}
    for tool in tools:
        length = _DIGEST_LENGTH
        while not is_name_part(tool) and parts.setdefault(_readable(tool, length), tool) != tool:
            length += 1
    part_of = {tool: part for part, tool in parts.items()}
    return {build_tool_name(server, part_of[tool]): tool for tool in tools}


def _readable(tool: str, length: int) -> str:
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:length]
    digest = digest.ljust(length, "0")  # a server may list every name that ends in a part of the digest
    return "-".join(filter(None, (_FORBIDDEN.sub("_", tool).strip("_-"), digest)))


# Arguments are checked by draft 2020-12 of JSON Schema. Servers also write draft-07, which means the same
# except for tuples (json-schema.org, "Understanding JSON Schema", release notes of 2020-12) and, before
# draft-06, limits.
#: keywords that hold values, not schemas
_DATA = frozenset({"const", "default", "enum", "examples"})
_LIMITS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def checkable(schema: JsonObject) -> JsonObject:
    """Return a schema unchanged if it is valid, else translated to the current draft.

    One that is invalid in both accepts any object: the server checks its arguments, too.

    Raises:
        SchemaTooLargeError: checking it would take too long.
    """
    for candidate in (schema, in_current_draft(schema)):
        try:
            compile_schema(candidate)
        except SchemaTooLargeError:
            raise
        except SchemaError:
            continue
        return candidate
    return {"type": "object"}


def in_current_draft(schema: Any) -> Any:
    """Return a schema translated to draft 2020-12."""
    if isinstance(schema, list):
        return [in_current_draft(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    current = {key: part if key in _DATA else in_current_draft(part) for key, part in schema.items()}
    if isinstance(schema.get("items"), list):
        current["prefixItems"] = current.pop("items")
        if "additionalItems" in current:
            current["items"] = current.pop("additionalItems")
    for limit, exclusive in _LIMITS:
        if isinstance(schema.get(exclusive), bool):
            del current[exclusive]
            if schema[exclusive] and limit in current:
                current[exclusive] = current.pop(limit)
    return current


#: the message of an error without text
SILENT_ERROR = "The tool failed without saying why."


def error_text(result: CallToolResult) -> str:
    """Return the server's message about a failed call."""
    return _text_of(result) or SILENT_ERROR


def output_of(result: CallToolResult) -> Any:
    """Return the structured content if there is any, else the text.

    A result with other content than text is returned in MCP's shape: ``{"content": […]}``, with
    ``structuredContent`` if there is any. :mod:`goondan_tasks.contract.mcp_content` reads it back.
    """
    if not all(isinstance(block, TextContent) for block in result.content):
        whole = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: whole[name] for name in ("content", "structuredContent") if name in whole}
    return _text_of(result) if result.structured_content is None else result.structured_content


def _text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


#: the longest message that ``ctx.progress`` takes
_MESSAGE_CHARACTERS = 1_000
#: the longest message that ``ctx.emit`` takes in any case
_EMITTED_CHARACTERS = LARGEST_CHUNK // 4 - 1


class ServerTools:
    """A server's registered tools, ``server__tool``, each as the server last described it."""

    def __init__(
        self,
        api: ExtensionApi,
        server: str,
        spec: StdioServer | HttpServer,
        secrets: Secrets,
        on_task: Callable[[RemoteTask], object],
    ) -> None:
        """``on_task`` is called with each task that a call becomes."""
        self._api = api
        self._server = server
        self._spec = spec
        self._secrets = secrets
        self._on_task = on_task
        self._shown: dict[str, Tool] = {}
        #: the tools that the server offers and that are not registered, with the reasons
        self.left_out: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of registered tools."""
        return len(self._shown)

    def show(self, listing: Listing, call: Call) -> None:
        """Register new and changed tools, and unregister those that are gone."""
        by_name = {tool.name: tool for tool in listing.tools}
        wanted = {full: by_name[name] for full, name in full_names(self._server, by_name).items()}
        for full, tool in list(self._shown.items()):
            if wanted.get(full) != tool:
                self._api.tools.unregister(full)
                del self._shown[full]
        for full, tool in wanted.items():
            if full not in self._shown:
                try:
                    self._register(full, tool, call)
                except ValueError as error:
                    listing.leave_out(tool.name, str(error))
        left_out = {name: self._secrets.hide(reason) for name, reason in listing.left_out.items()}
        for name, reason in left_out.items():
            if self.left_out.get(name) != reason:
                self._api.logger.warning(
                    "mcp.tool_refused", server=self._server, tool=name, code=McpError.code, reason=reason
                )
        self.left_out = left_out

    def output(self, result: CallToolResult) -> Any:
        """Return the output of a call, without credentials.

        Raises:
            ToolError: the result is an error.
        """
        if result.is_error:
            raise ToolError(self._secrets.hide(error_text(result)))
        return self._secrets.hide_credentials(output_of(result))

    def _register(self, full: str, tool: Tool, call: Call) -> None:
        source = ToolSource(
            type="mcp",
            name=self._api.extension.name,
            mcp=McpSource(extension_name=self._api.extension.name, server_name=self._server),
        )
        item = CatalogItem(
            name=full,
            description=tool.description,
            parameters=checkable(tool.input_schema),
            source=source,
        )
        self._api.tools.register(item, self._handler(tool.name, call), policy=self._policy(tool))
        self._shown[full] = tool

    def _policy(self, tool: Tool) -> JsonObject:
        """Return a tool's policy; a configured server is trusted, so its annotations count like YAML."""
        hints = tool.annotations
        is_annotated = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        is_declared = any(fnmatchcase(tool.name, glob) for glob in self._spec.idempotent)
        policy: JsonObject = {"idempotent": is_annotated or is_declared}
        if self._spec.timeout_seconds is not None:
            policy["timeoutSeconds"] = self._spec.timeout_seconds
        return policy

    def _handler(self, tool: str, call: Call) -> ToolHandler:
        async def handle(ctx: ToolContext, input: JsonObject) -> Any:
            async def report(progress: float, total: float | None, message: str | None) -> None:
                shown = self._secrets.hide(message)[:_MESSAGE_CHARACTERS] if message else None
                with contextlib.suppress(ToolError):  # the server's numbers may be invalid
                    ctx.progress(progress, total, shown)
                if message:  # progress has only the latest message, and the protocol no other output
                    ctx.emit(f"{self._secrets.hide(message)[:_EMITTED_CHARACTERS]}\n")

            result = await call(tool, input, report)
            if isinstance(result, CallToolResult):
                return self.output(result)
            task = RemoteTask(self._server, result.task_id)
            self._on_task(task)
            message = self._secrets.hide(result.status_message or "")[:_MESSAGE_CHARACTERS]
            interim = {"server": task.server, "taskId": task.id, "message": message or None}
            return ctx.pending(task.handle, interim, ttl_seconds=self._spec.timeout_seconds)

        return handle
