"""``goondan serve``, and the commands that open one of its doors. :mod:`goondan_web` is imported by name."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goondan_tasks.cli.addresses import announce, listening_socket
from goondan_tasks.cli.options import Address, Port, complete_agent, flag, name_option, option
from goondan_tasks.cli.session import Interruption, Session, require_broker, takes_client
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import ConfigError, extra
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.contract.wording import closest
from goondan_tasks.machine.process import is_loopback, url_of

if TYPE_CHECKING:
    from goondan_tasks.connectors.running import RunningConnections

#: the doors, and the extra that each needs; the modules are those of goondan_web.doors
DOORS = {
    "ag-ui": "web",
    "api": "web",
    "callbacks": "web",
    "connections": "web",
    "console": "web",
    "metrics": "web",
    "mcp": "mcp",
    "oauth": "oauth",
    "openai": "web",
    "vercel": "web",
}
#: those that every bundle can have
_ALWAYS = ("callbacks", "metrics")
_METRICS_PORT = 9464

Agents = Annotated[
    list[str] | None,
    option(
        "A",
        "An agent whose tools the door mcp serves, at /mcp/A; repeatable.",
        "--agent",
        autocompletion=complete_agent,
    ),
]
Instance = Annotated[
    str | None, name_option("K", "The instance of every call. Default: one for each MCP session.")
]


@takes_client
def serve(
    session: Session,
    client: Client,
    door: Annotated[
        list[str] | None,
        option("NAME", f"Doors, with commas or repeated: {', '.join(DOORS)}. Default: see above."),
    ] = None,
    agents: Agents = None,
    instance: Instance = None,
    port: Port = None,
    address: Address = None,
    user_header: Annotated[
        str | None,
        option(
            "NAME", "The header by which trusted proxies name the user. Default: GOONDAN_HTTP_USER_HEADER."
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        option("NET", "An address or network of proxies; repeatable. Default: GOONDAN_HTTP_TRUSTED_PROXIES."),
    ] = None,
) -> None:
    """Serve HTTP until Ctrl-C: the API, a console, callbacks, Connections, metrics, OAuth and MCP.

    Without --door, api and console are open if the environment has tokens or only this machine reaches the
    server, connections if Connections answer requests, oauth if the bundle has OAuthApps, and mcp if --agent
    names an agent.
    """
    proxies = {"http_user_header": user_header, "http_trusted_proxies": ",".join(trusted_proxy or ()) or None}
    session = replace(session, settings=session.settings.changed(**proxies))
    names = _doors_of(door) if door else _default_doors(session, agents or (), address)
    _run(session, client, names, port, address, agents=agents or (), instance=instance)


@takes_client
def callbacks(session: Session, client: Client, port: Port = None, address: Address = None) -> None:
    """Serve the URLs that tools get from ctx.callback_url, until Ctrl-C.

    A POST of {"output": …} or {"error": {"message": …}} to a URL completes its call, once. Workers build the
    URLs from their GOONDAN_PUBLIC_URL, which must lead here.
    """
    _run(session, client, ["callbacks"], port, address)


@takes_client
def console(session: Session, client: Client, port: Port = None, address: Address = None) -> None:
    """Serve pages for browsers until Ctrl-C: what the swarm does, and forms that act.

    With tokens, a browser asks for a name, which may be any, and a password, which is a token.
    """
    _run(session, client, ["console"], port, address)


@takes_client
def metrics(
    session: Session,
    client: Client,
    port: Annotated[
        int | None, option("P", "Default: GOONDAN_METRICS_PORT, else 9464.", min=0, max=65_535)
    ] = None,
    address: Address = None,
) -> None:
    """Serve metrics of every agent to Prometheus, until Ctrl-C: backlog, running, workers, crash loops.

    `goondan orchestrator` serves the same metrics if GOONDAN_METRICS_PORT is set.
    """
    configured = session.settings.metrics_port
    default = _METRICS_PORT if configured is None else configured
    _run(session, client, ["metrics"], default if port is None else port, address)


@takes_client
def oauth(session: Session, client: Client, port: Port = None, address: Address = None) -> None:
    """Serve the callbacks of all OAuthApps, and poll for device codes, until Ctrl-C."""
    _run(session, client, ["oauth"], port, address)


@takes_client
def mcp_server(
    session: Session,
    client: Client,
    agent: Annotated[str, option("A", "The agent whose tools are served.", autocompletion=complete_agent)],
    http: Annotated[bool, flag("Serve streamable HTTP at /mcp instead of stdio.", "--http")] = False,
    port: Port = None,
    address: Address = None,
    instance: Instance = None,
) -> None:
    """Let MCP clients list an agent's tools and call them on its workers.

    By default it serves stdin and stdout, for clients that start servers themselves, until stdin closes. A
    call is cancelled when the client cancels it, closes stdin or ends its session.
    """
    if http:
        return _run(session, client, ["mcp"], port, address, agents=[agent], instance=instance)
    if port is not None or address is not None:
        raise typer.BadParameter("--port and --address go with --http.")
    with extra("mcp"):  # optional: only now
        from goondan_tasks.programs.mcp_server import AgentServer, serve_stdio
    settings = session.settings
    require_broker(settings)
    configure_logging(settings)
    client.catalog(agent)
    served = AgentServer(
        AsyncClient(client),
        agent,
        instance_key=instance,
        help_url=settings.help_url,
        result_ttl_seconds=settings.result_ttl_seconds,
    )
    return serve_stdio(served)


@contextlib.contextmanager
def metrics_served(session: Session, port: int) -> Iterator[str]:
    """Serve the metrics within a ``with`` block; yield their URL.

    Raises:
        typer.BadParameter: it cannot listen there.
        ConfigError: the extra ``web`` is not installed.
    """
    openers, host = _openers(["metrics"]), session.settings.http_host
    with (
        session.client() as client,
        _application(session, client, openers, host) as application,
        listening_socket(host, port) as server,
        web("server").served(application, server),
    ):
        yield f"{url_of(server)}/metrics"


@contextlib.contextmanager
def connections_served(
    session: Session, client: Client, connections: "RunningConnections", port: int | None, address: str | None
) -> Iterator[str | None]:
    """Serve the requests to Connections within a ``with`` block; yield the URL.

    ``None`` if none of them answers requests.

    Raises:
        typer.BadParameter: it cannot listen there.
        ConfigError: the extra ``web`` is not installed.
    """
    if not connections.entrances:
        yield None
        return
    [_], settings = _openers(["connections"]), session.settings
    door = web("doors.connections").connections_door(connections, settings)
    host = address or settings.http_host
    with (
        _application(session, client, [lambda _: contextlib.nullcontext(door)], host) as application,
        listening_socket(host, settings.http_port if port is None else port) as server,
        web("server").served(application, server),
    ):
        yield url_of(server)


def web(module: str) -> Any:
    """Import a module of goondan_web, which nothing of goondan_tasks imports.

    Raises:
        ImportError: a package of its extra is not installed.
    """
    return importlib.import_module(f"goondan_web.{module}")


def _run(
    session: Session,
    client: Client,
    names: Sequence[str],
    port: int | None,
    address: str | None,
    **options: Any,
) -> None:
    settings = session.settings
    openers, host = _openers(names), address or settings.http_host
    require_broker(settings)
    configure_logging(settings)
    with (
        _application(session, client, openers, host, **options) as application,
        Interruption().listening(),
        listening_socket(host, settings.http_port if port is None else port) as server,
    ):
        addresses = {one.name: url_of(server) + one.path for one in application.doors if one.name in names}
        if len(names) == 1:
            announce(session, "Listening", addresses[names[0]])
        else:
            announce(session, "Listening", url_of(server), doors=addresses)
            for name, url in addresses.items():
                session.output.note(f"  {name}: {url}")
        web("server").serve(application, server)


def _openers(names: Sequence[str]) -> list[Any]:
    openers = []
    for name in names:
        with extra(DOORS[name]):  # optional: only now
            openers.append(web(f"doors.{name.replace('-', '_')}").opened)
    return openers


def _application(session: Session, client: Client, openers: Sequence[Any], host: str, **options: Any) -> Any:
    context = web("door").DoorContext(
        session.settings, client, session.bundle, session.output.note, **options
    )
    return web("program").opened_application(openers, context, host)


def _doors_of(given: Sequence[str]) -> list[str]:
    """Return the names that --door has, each once.

    Raises:
        typer.BadParameter: one of them is no door.
    """
    names = [name.strip() for words in given for name in words.split(",")]
    for name in names:
        if name not in DOORS:
            meant = closest(name, DOORS)
            guess = "" if meant is None else f" Did you mean {meant}?"
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(DOORS)}.{guess}")
    return list(dict.fromkeys(names))


def _default_doors(session: Session, agents: Sequence[str], address: str | None) -> list[str]:
    names, settings = [*_ALWAYS], session.settings
    if settings.http_token or settings.http_tokens or is_loopback(address or settings.http_host):
        names += ["api", "console"]
    if agents:
        names.append("mcp")
    if session.settings.bundle is not None:
        with contextlib.suppress(ConfigError):  # the client reports it
            if session.bundle().oauth_apps:
                names.append("oauth")
            # other commands import this module for a door of theirs, which needs no connectors
            from goondan_tasks.connectors.connections import answering

            if answering(session.bundle()):
                names.append("connections")
    return names
