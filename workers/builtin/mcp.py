"""Built-in extension ``mcp``: gives the agent the tools of MCP servers, over stdio or streamable HTTP."""

from goondan_tasks.errors import extra
from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.messages import JsonObject
from workers.mcp import process_board


async def register(api: ExtensionApi, config: JsonObject) -> None:
    """Start the servers that ``config`` names, and register their tools as ``server__tool``.

    Raises:
        ConfigError: the config is not valid, or the extra ``mcp`` is not installed.
    """
    with extra("mcp"):  # optional: only now
        from workers.mcp.agent_servers import McpServers
        from workers.mcp.servers import RestartTimes
    servers = McpServers(api, process_board(), RestartTimes())
    api.events.on("extension.unloading", lambda _event: servers.stop())
    await servers.start(config)
