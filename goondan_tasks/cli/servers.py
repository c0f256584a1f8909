"""Commands that run until Ctrl-C: workers, the orchestrator, and Flower."""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from broker_config.connections import connect
from broker_config.hard_end import END_SECONDS
from broker_config.options import CONCURRENCY, declared_queues
from broker_config.settings import hidden_password
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.addresses import announce, require_free
from goondan_tasks.cli.doors import metrics_served
from goondan_tasks.cli.options import (
    Concurrency,
    ServedAgents,
    Verbose,
    argument,
    option,
    seconds_option,
)
from goondan_tasks.cli.session import (
    Interruption,
    Session,
    chosen_agents,
    chosen_bundle,
    require_broker,
    takes_session,
)
from goondan_tasks.contract.errors import ConfigError, require_extra
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.fleet.agent_registry import describe_agents
from goondan_tasks.machine.process import url_at
from goondan_tasks.orchestrator.orchestrator import IDLE_SECONDS, Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import Supervisor, start_detached, worker_command
from goondan_tasks.revisions.bootstrap import Bootstrap, require_followable

LOOPBACK = "127.0.0.1"
FLOWER_PORT = 5555
#: how often the orchestrator checks its agents
LOOK_SECONDS = 0.5
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
    metrics = contextlib.nullcontext() if port is None else metrics_served(session, port)
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
    require_free(address, port)
    announce(session, "Flower", url_at(address, port))
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


def node_name(kind: str) -> str:
    return f"{kind}-{os.getpid()}@{socket.gethostname()}"


def node_label(agents: Sequence[str]) -> str:
    return ".".join(agents)[:_LONGEST_LABEL].rstrip(".-")
