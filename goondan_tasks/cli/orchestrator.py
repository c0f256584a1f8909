"""``goondan orchestrator``: keeps a worker for every agent that needs one."""

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Annotated

import typer

from broker_config.connections import connect
from broker_config.settings import hidden_password
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.metrics import metrics_server
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.cli.selection import chosen_agents, chosen_bundle
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.logs import configure_logging
from goondan_tasks.orchestrator.orchestrator import IDLE_SECONDS, Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import Supervisor as Members
from goondan_tasks.orchestrator.supervisor import WorkerProcess, worker_command
from goondan_tasks.roster import describe_agents

#: how often it looks
LOOK_SECONDS = 0.5


@takes_session
def orchestrator(
    session: Session,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="A", help="An agent to look after; repeatable. Default: all."),
    ] = None,
    idle_seconds: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            metavar="S",
            help=f"Stop a worker that has been idle for S s. Default: {IDLE_SECONDS:g}.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Calls at once in each worker.")
    ] = 8,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level debug.")] = False,
) -> None:
    """Start a worker for each agent when something waits for it, and stop it when it has been idle.

    Workers that others have started count, and are left alone. Any number of orchestrators may run. With
    the first SIGTERM or Ctrl-C its workers drain, with the second they are killed.
    """
    settings = session.settings
    path = chosen_bundle(settings)
    bundle = load_bundle(path)
    agents = chosen_agents(bundle, settings.swarm, agent or ())
    require_broker(settings)
    configure_logging(settings)
    name = f"orchestrator-{os.getpid()}@{socket.gethostname()}"
    _introduce(session, name, agents)
    options = ["--concurrency", str(concurrency), *(["--verbose"] if verbose else [])]
    environment = session.environment(bundle=path)
    interruption = Interruption()
    known = describe_agents(bundle, settings.swarm, settings.workspace)
    with contextlib.ExitStack() as resources:
        resources.enter_context(interruption.listening())
        redis = resources.enter_context(connect(settings.redis_url, name="goondan-orchestrator"))
        if settings.metrics_port is not None:
            url = resources.enter_context(metrics_server(session, settings.metrics_port))
            session.output.note(f"Metrics: {url}")
        members = Members(
            lambda one: WorkerProcess.start(worker_command(one, options), environment),
            patience_of(settings, bundle),
        )
        orchestrating = Orchestrator(
            agents,
            Fleet(redis, settings, known, name),
            members,
            rules=Rules(IDLE_SECONDS if idle_seconds is None else idle_seconds),
        )
        while not interruption.asked.wait(LOOK_SECONDS):
            orchestrating.look()
        orchestrating.stop()


def _introduce(session: Session, name: str, agents: Sequence[str]) -> None:
    """Say that it has begun, and whom it looks after."""
    if session.output.as_json:
        session.output.document({"orchestrator": name, "agents": agents})
    session.output.note(f"Looking after {', '.join(agents)} on {hidden_password(session.settings.redis_url)}")
