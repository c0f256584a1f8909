"""The tools of an MCP server among those of an agent."""

import contextlib
from fnmatch import fnmatchcase
from typing import Any

from mcp_types import Tool

from goondan_tasks.errors import ToolError
from goondan_tasks.extension_api import CatalogItem, ExtensionApi, McpSource, ToolSource
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import ToolContext, ToolHandler
from workers.mcp.config import HttpServer, StdioServer
from workers.mcp.names import full_names
from workers.mcp.results import error_text, output_of
from workers.mcp.schemas import checkable
from workers.mcp.secrets import Secrets
from workers.mcp.server import Call

#: what ``ctx.progress`` takes of a message
_MESSAGE_CHARACTERS = 1_000


class ServerTools:
    """What of a server's tools is registered: ``server__tool``, each as the server has last described it."""

    def __init__(
        self, api: ExtensionApi, server: str, spec: StdioServer | HttpServer, secrets: Secrets
    ) -> None:
        self._api = api
        self._server = server
        self._spec = spec
        self._secrets = secrets
        self._shown: dict[str, Tool] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._shown)

    def show(self, tools: list[Tool], call: Call) -> None:
        """Register what is new or has changed, and take away what is gone."""
        by_name = {tool.name: tool for tool in tools}
        wanted = {full: by_name[name] for full, name in full_names(self._server, by_name).items()}
        for full, tool in list(self._shown.items()):
            if wanted.get(full) != tool:
                self._api.tools.unregister(full)
                del self._shown[full]
        for full, tool in wanted.items():
            if full not in self._shown:
                self._register(full, tool, call)

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
        try:
            self._api.tools.register(
                item, _handler(tool.name, call, self._secrets), policy=self._policy(tool)
            )
        except ValueError as error:
            reason = self._secrets.hide(str(error))
            self._api.logger.warning("mcp.tool_refused", server=self._server, tool=full, reason=reason)
        else:
            self._shown[full] = tool

    def _policy(self, tool: Tool) -> JsonObject:
        """A hint of the server counts as much as a declaration in YAML: whoever adds a server trusts it."""
        hints = tool.annotations
        says_so = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        declared = any(fnmatchcase(tool.name, glob) for glob in self._spec.idempotent)
        policy: JsonObject = {"idempotent": says_so or declared}
        if self._spec.timeout_seconds is not None:
            policy["timeoutSeconds"] = self._spec.timeout_seconds
        return policy


def _handler(tool: str, call: Call, secrets: Secrets) -> ToolHandler:
    async def handle(ctx: ToolContext, input: JsonObject) -> Any:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            shown = secrets.hide(message)[:_MESSAGE_CHARACTERS] if message else None
            with contextlib.suppress(ToolError):  # a number that makes no sense is no reason to fail
                ctx.progress(progress, total, shown)

        result = await call(tool, input, report)
        if result.is_error:
            raise ToolError(secrets.hide(error_text(result)))
        return secrets.hide_credentials(output_of(result))

    return handle
