"""``goondan mcp-server``: an agent's tools for MCP clients."""

from functools import partial
from typing import Annotated

import typer

from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.http_options import Address, Port, announced
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.turn_options import require_some_text
from goondan_tasks.client import AsyncClient
from goondan_tasks.logs import configure_logging


@takes_session
def mcp_server(
    session: Session,
    agent: Annotated[str, typer.Option(metavar="A", help="The agent whose tools are served.")],
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp, not stdio.")] = False,
    port: Port = None,
    address: Address = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            callback=require_some_text,
            help="The instance of every call; else each MCP session has its own.",
        ),
    ] = None,
) -> None:
    """Let MCP clients list an agent's tools and call them on its workers.

    By default over stdin and stdout, as clients start servers themselves; it ends with stdin. What a client
    waits for is cancelled when the client cancels it, closes stdin or ends its session.
    """
    if not http and (port is not None or address is not None):
        raise typer.BadParameter("--port and --address go with --http.")
    with extra("mcp"):  # optional: only now
        from goondan_tasks.http import serve
        from goondan_tasks.mcp_server import PATH, AgentServer, end, make_app, serve_stdio
    settings = session.settings
    require_broker(settings)
    configure_logging(settings)
    with session.client() as client:
        client.catalog(agent)
        served = AgentServer(AsyncClient(client), agent, instance_key=instance, help_url=settings.help_url)
        if not http:
            return serve_stdio(served)
        host = address or settings.http_host
        app = make_app(served, settings, host)
        with Interruption().listening(), announced(session, host, port, PATH) as server:
            serve(app, server, partial(end, served))
    return None
