"""``goondan worker``: checks what a worker needs, then runs Celery's worker for the agents."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from broker_config.queues import declared_queues
from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.selection import chosen_agents, chosen_bundle
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.revisions.bootstrap import Bootstrap, require_followable
from goondan_tasks.worker_program import run_worker

#: a node's name is part of keys and of Flower's pages
LONGEST_LABEL = 60


@takes_session
def worker(
    session: Session,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="A", help="An agent to serve; repeatable. Default: all.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Calls at once.")] = 8,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level debug.")] = False,
) -> None:
    """Run a worker for one or more agents until SIGTERM or Ctrl-C.

    Calls that run then get GOONDAN_GRACE_SECONDS to end.
    """
    settings = session.settings
    path = chosen_bundle(settings)
    standing = Bootstrap.of(path, settings)
    agents = chosen_agents(standing.bundle, settings.swarm, agent or ())
    if standing.ref is None:
        require_followable(standing.bundle, path, settings)
    require_broker(settings)
    # the process id makes the name unique on this host
    name = f"{node_label(agents)}-{os.getpid()}"
    if session.output.as_json:
        session.output.document({"worker": name, "agents": agents, "concurrency": concurrency})
    level = "debug" if verbose else settings.log_level
    os.environ.update(session.environment(bundle=path, log_level=level))  # noqa: TID251 - Celery's app reads it
    queues = [queue.name for queue in declared_queues(agents)]
    run_worker(f"{name}@%h", queues, concurrency=concurrency, log_level=level)


def node_label(agents: Sequence[str]) -> str:
    """Name a worker by the agents it serves."""
    return ".".join(agents)[:LONGEST_LABEL].rstrip(".-")
