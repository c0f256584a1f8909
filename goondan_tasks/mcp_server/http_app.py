"""The MCP server as an ASGI application: streamable HTTP at ``/mcp``."""

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_tasks.http.guard import HttpGuard, guarded
from goondan_tasks.mcp_server.agent_server import AgentServer
from goondan_tasks.mcp_server.event_memory import ResumableSessions

PATH = "/mcp"
#: after how long a client whose stream broke is asked to come back
RETRY_MS = 1_000


def make_app(agent_server: AgentServer, settings: Settings, host: str) -> HttpGuard:
    """Make the application that is served on ``host``.

    Raises:
        ConfigError: others than this machine could reach it, and no token is set.
    """
    # else streams would end with the first signal, and what they are to bring would be lost
    AppStatus.enable_automatic_graceful_drain = False
    sessions = ResumableSessions(
        agent_server.build(),
        # JSON may write an argument's character in several bytes more than we count
        max_request_body_size=max(DEFAULT_MAX_REQUEST_BODY_SIZE, 2 * settings.max_args_bytes),
        # our guard checks Host and Origin, with a token's holder in mind
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        retry_interval=RETRY_MS,
    )
    app = Starlette(
        routes=[Route(PATH, endpoint=StreamableHTTPASGIApp(sessions))], lifespan=lambda _: sessions.run()
    )
    return guarded(app, settings, host)


async def end(agent_server: AgentServer) -> None:
    """Answer who waits, then end the streams that are still open."""
    await agent_server.end()
    AppStatus.should_exit = True
