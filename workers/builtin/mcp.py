"""Built-in extension ``mcp``: the tools of MCP servers, over stdio or streamable HTTP, become the agent's."""

from goondan_tasks.errors import ExtensionInitError
from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.messages import JsonObject
from workers.mcp import process_board


async def register(api: ExtensionApi, config: JsonObject) -> None:
    """Start the servers that ``config`` names, and register their tools as ``server__tool``.

    Raises:
        ExtensionInitError: the package ``mcp`` is not installed.
        ConfigError: the config is not valid.
    """
    try:
        # an optional extra
        from workers.mcp.servers import McpServers, RestartTimes
    except ModuleNotFoundError as error:
        raise ExtensionInitError(
            f"The package {error.name!r} is not installed.",
            suggestion="Install the extra `mcp`: pip install 'goondan-workers[mcp]'.",
        ) from error
    servers = McpServers(api, process_board(), RestartTimes())
    api.events.on("extension.unloading", lambda _event: servers.stop())
    await servers.start(config)
