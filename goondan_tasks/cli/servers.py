"""Commands that run until Ctrl-C: workers, the orchestrator, and servers."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import typer

from broker_config.connections import connect
from broker_config.options import CONCURRENCY, declared_queues
from broker_config.settings import hidden_password
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.options import (
    Address,
    Concurrency,
    Port,
    ServedAgents,
    Verbose,
    argument,
    complete_agent,
    flag,
    name_option,
    option,
    seconds_option,
)
from goondan_tasks.cli.session import (
    END_SECONDS,
    Interruption,
    Session,
    chosen_agents,
    chosen_bundle,
    require_broker,
    takes_client,
    takes_session,
)
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import ConfigError, extra, require_extra
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.fleet.agent_registry import describe_agents
from goondan_tasks.machine.process import listening, url_of
from goondan_tasks.orchestrator.orchestrator import IDLE_SECONDS, Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import Supervisor, start_detached, worker_command
from goondan_tasks.revisions.bootstrap import Bootstrap, require_followable

LOOPBACK = "127.0.0.1"
FLOWER_PORT = 5555
#: how often the orchestrator checks its agents
LOOK_SECONDS = 0.5
_METRICS_PORT = 9464
#: a node's name is part of keys and of Flower's pages
_LONGEST_LABEL = 60
#: ``-P``: no module is imported from the current directory
_FLOWER = (sys.executable, "-P", "-m", "goondan_tasks.programs.flower_program")
#: Flower's default lacks arguments and results; a call is a keyword argument of its task
_TASK_COLUMNS = "name,state,kwargs,result,worker,runtime,received,uuid"


@takes_session
def worker(
    session: Session,
    agent: ServedAgents = None,
    concurrency: Concurrency = CONCURRENCY,
    verbose: Verbose = False,
) -> None:
    """Run a worker for one or more agents until SIGTERM or Ctrl-C.

    Running calls then have GOONDAN_GRACE_SECONDS to end.
    """
    require_extra("worker", "celery", "httpx2")
    from goondan_tasks.celery import run_worker  # an extra

    settings = session.settings
    path = chosen_bundle(settings)
    bootstrap = Bootstrap.of(path, settings)
    agents = chosen_agents(bootstrap.bundle, settings.swarm, agent or ())
    if bootstrap.ref is None:
        require_followable(bootstrap.bundle, path, settings)
    require_broker(settings)
    # the process id makes it unique on this host
    name = f"{node_label(agents)}-{os.getpid()}"
    if session.output.as_json:
        session.output.document({"worker": name, "agents": agents, "concurrency": concurrency})
    level = "debug" if verbose else settings.log_level
    os.environ.update(session.environment(bundle=path, log_level=level))  # noqa: TID251 - Celery's app reads it
    queues = [queue.name for queue in declared_queues(agents)]
    bootstrap.hand_over(path)
    run_worker(f"{name}@%h", queues, concurrency=concurrency, log_level=level)


@takes_session
def orchestrator(
    session: Session,
    agent: ServedAgents = None,
    idle_seconds: Annotated[
        float, seconds_option("Stop a worker that has been idle for S seconds.")
    ] = IDLE_SECONDS,
    concurrency: Concurrency = CONCURRENCY,
    verbose: Verbose = False,
) -> None:
    """Start a worker for an agent when work waits for it, and stop the worker when it has been idle.

    Workers that others have started count too, and are left alone. Several orchestrators may run. The first
    SIGTERM or Ctrl-C drains its workers, the second kills them.
    """
    require_extra("worker", "celery", "httpx2")
    settings, output = session.settings, session.output
    path = chosen_bundle(settings)
    bundle = load_bundle(path)
    agents = chosen_agents(bundle, settings.swarm, agent or ())
    require_broker(settings)
    configure_logging(settings)
    name = node_name("orchestrator")
    if output.as_json:
        output.document({"orchestrator": name, "agents": agents})
    output.note(f"Looking after {', '.join(agents)} on {hidden_password(settings.redis_url)}")
    command = partial(worker_command, concurrency=concurrency, verbose=verbose)
    environment = session.environment(bundle=path)
    supervisor = Supervisor(
        lambda one: start_detached(command(one), environment), patience_of(settings, bundle)
    )
    known = describe_agents(bundle, settings.swarm, settings.workspace)
    interruption, port = Interruption(settings.grace_seconds + END_SECONDS), settings.metrics_port
    metrics = contextlib.nullcontext() if port is None else metrics_server(session, port)
    with (
        interruption.listening(),
        connect(settings.redis_url, name="goondan-orchestrator") as redis,
        metrics as url,
    ):
        if url is not None:
            output.note(f"Metrics: {url}")
        fleet = Fleet(redis, settings, known, name, bundle)
        orchestrating = Orchestrator(agents, fleet, supervisor, rules=Rules(idle_seconds))
        while not interruption.asked.wait(LOOK_SECONDS):
            orchestrating.look()
        orchestrating.stop()


@takes_client
def mcp_server(
    session: Session,
    client: Client,
    agent: Annotated[str, option("A", "The agent whose tools are served.", autocompletion=complete_agent)],
    http: Annotated[bool, flag("Serve streamable HTTP at /mcp instead of stdio.", "--http")] = False,
    port: Port = None,
    address: Address = None,
    instance: Annotated[
        str | None, name_option("K", "The instance of every call. Default: one for each MCP session.")
    ] = None,
) -> None:
    """Let MCP clients list an agent's tools and call them on its workers.

    By default it serves stdin and stdout, for clients that start servers themselves, until stdin closes. A
    call is cancelled when the client cancels it, closes stdin or ends its session.
    """
    if not http and (port is not None or address is not None):
        raise typer.BadParameter("--port and --address go with --http.")
    with extra("mcp"):  # optional: only now
        from goondan_tasks.programs.http import serve
        from goondan_tasks.programs.mcp_server import PATH, AgentServer, end, make_app, serve_stdio
    settings = session.settings
    require_broker(settings)
    configure_logging(settings)
    client.catalog(agent)
    served = AgentServer(AsyncClient(client), agent, instance_key=instance, help_url=settings.help_url)
    if not http:
        return serve_stdio(served)
    app = make_app(served, settings, address or settings.http_host)
    with Interruption().listening(), announced_socket(session, address, port, PATH) as server:
        return serve(app, server, partial(end, served))


@takes_client
def callbacks(session: Session, client: Client, port: Port = None, address: Address = None) -> None:
    """Serve the URLs that tools get from ctx.callback_url, until Ctrl-C.

    A POST of {"output": …} or {"error": {"message": …}} to a URL completes its call, once. Workers build the
    URLs from their GOONDAN_PUBLIC_URL, which must lead here.
    """
    with extra("serve"):  # optional: only now
        from goondan_tasks.programs.callbacks import make_app
        from goondan_tasks.programs.http import serve
    settings = session.settings
    require_broker(settings)
    configure_logging(settings)
    with Interruption().listening(), announced_socket(session, address, port, "/callbacks") as server:
        if settings.public_url is None:
            session.output.note("GOONDAN_PUBLIC_URL is not set here; workers need it to build the URLs.")
        serve(make_app(AsyncClient(client).complete_with_token, settings), server)


@takes_session
def metrics(
    session: Session,
    port: Annotated[
        int | None, option("P", "Default: GOONDAN_METRICS_PORT, else 9464.", min=0, max=65_535)
    ] = None,
    address: Address = None,
) -> None:
    """Serve metrics of every agent to Prometheus, until Ctrl-C: backlog, running, workers, crash loops.

    `goondan orchestrator` serves the same metrics if GOONDAN_METRICS_PORT is set.
    """
    settings = session.settings
    require_broker(settings)
    default = _METRICS_PORT if settings.metrics_port is None else settings.metrics_port
    interruption = Interruption()
    with interruption.listening(), metrics_server(session, default if port is None else port, address) as url:
        _announce(session, "Metrics", url)
        interruption.asked.wait()


@takes_session
def flower(
    session: Session,
    port: Annotated[int, option("P", "The port to listen on.", min=1, max=65_535)] = FLOWER_PORT,
    address: Annotated[str, option("HOST", "The address to listen on.")] = LOOPBACK,
    options: Annotated[
        list[str] | None,
        argument("OPTIONS", "Options for Flower itself: -- --basic-auth=user:password."),
    ] = None,
) -> None:
    """Run Flower, which shows workers, tasks, results and queue lengths in a browser.

    Its REST API answers 401 unless --basic-auth, --auth or FLOWER_UNAUTHENTICATED_API=true is set.
    """
    require_extra("cli", "flower")
    settings = session.settings
    path = settings.bundle and settings.bundle.absolute()
    if path is not None:
        try:
            load_bundle(path)
        except ConfigError as error:
            session.output.note(f"The bundle {path} is not used: {error}")
            path = None
    require_broker(settings)
    _require_free(address, port)
    _announce(session, "Flower", f"http://{f'[{address}]' if ':' in address else address}:{port}")
    if address != LOOPBACK:
        session.output.note("Without --basic-auth, anyone who reaches it can see calls and stop workers.")
    # the user's options come later and win
    ours = (f"--tasks_columns={_TASK_COLUMNS}", f"--address={address}", f"--port={port}")
    celery = ("--app", "goondan_tasks", "--quiet", "flower")
    command = [*_FLOWER, *celery, *ours, f"--logging={settings.log_level}", *(options or ())]
    environment = session.environment(bundle=path)
    if path is None:
        environment.pop("GOONDAN_BUNDLE", None)
    os.execve(command[0], command, environment)  # noqa: S606


@contextlib.contextmanager
def announced_socket(
    session: Session, address: str | None, port: int | None, path: str
) -> Iterator[socket.socket]:
    """Yield a socket that listens for HTTP, and report its URL.

    Raises:
        typer.BadParameter: it cannot listen there.
    """
    host = address or session.settings.http_host
    chosen = session.settings.http_port if port is None else port
    with contextlib.ExitStack() as resources:
        try:
            server = resources.enter_context(listening(host, chosen))
        except OSError as error:
            raise _no_listener(host, chosen, error.strerror or str(error)) from error
        _announce(session, "Listening", url_of(server) + path)
        yield server


@contextlib.contextmanager
def metrics_server(session: Session, port: int, address: str | None = None) -> Iterator[str]:
    """Serve the metrics within a ``with`` block; yield their URL.

    Raises:
        typer.BadParameter: it cannot listen there.
        ConfigError: the extra ``cli`` is not installed.
    """
    with extra("cli"):  # optional: only now
        from goondan_tasks.programs.metrics import serving
    host = address or session.settings.http_host
    _require_free(host, port)
    with (
        session.client() as client,
        serving(client.agent_statuses, client.call_counts, client.schedules.list, host, port) as url,
    ):
        yield url


def why_not_free(address: str, port: int) -> str | None:
    """Return why no server can listen on ``port``; ``None`` if one can."""
    try:
        with listening(address, port):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _require_free(address: str, port: int) -> None:
    if reason := why_not_free(address, port):
        raise _no_listener(address, port, reason)


def _no_listener(address: str, port: int, reason: str) -> typer.BadParameter:
    return typer.BadParameter(f"cannot listen on {address} port {port}: {reason}.")


def _announce(session: Session, what: str, url: str) -> None:
    if session.output.as_json:
        session.output.document({"url": url})
    session.output.note(f"{what}: {url}")


def node_name(kind: str) -> str:
    return f"{kind}-{os.getpid()}@{socket.gethostname()}"


def node_label(agents: Sequence[str]) -> str:
    return ".".join(agents)[:_LONGEST_LABEL].rstrip(".-")
