"""The MCP server as an ASGI application: streamable HTTP at ``/mcp``."""

from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings

from broker_config.settings import Settings
from goondan_tasks.http.guard import HttpGuard, guarded
from goondan_tasks.mcp_server.agent_server import AgentServer

PATH = "/mcp"


def make_app(agent_server: AgentServer, settings: Settings, host: str) -> HttpGuard:
    """Make the application that is served on ``host``.

    Raises:
        ConfigError: others than this machine could reach it, and no token is set.
    """
    app = agent_server.build().streamable_http_app(
        streamable_http_path=PATH,
        # JSON may write an argument's character in several bytes more than we count
        max_request_body_size=max(DEFAULT_MAX_REQUEST_BODY_SIZE, 2 * settings.max_args_bytes),
        # our guard checks Host and Origin, with a token's holder in mind
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return guarded(app, settings, host)
