"""``goondan worker``: checks what a worker needs, then runs Celery's worker for the agents."""

import os
from collections.abc import Sequence

from broker_config.options import declared_queues
from goondan_tasks.cli.options import Concurrency, ServedAgents, Verbose
from goondan_tasks.cli.session import Session, chosen_agents, chosen_bundle, require_broker, takes_session
from goondan_tasks.errors import require_extra
from goondan_tasks.revisions.bootstrap import Bootstrap, require_followable

#: a node's name is part of keys and of Flower's pages
_LONGEST_LABEL = 60


@takes_session
def worker(
    session: Session, agent: ServedAgents = None, concurrency: Concurrency = 8, verbose: Verbose = False
) -> None:
    """Run a worker for one or more agents until SIGTERM or Ctrl-C.

    Calls that run then get GOONDAN_GRACE_SECONDS to end.
    """
    require_extra("worker", "celery", "httpx2")
    from goondan_tasks.celery_program import run_worker  # an extra

    settings = session.settings
    path = chosen_bundle(settings)
    bootstrap = Bootstrap.of(path, settings)
    agents = chosen_agents(bootstrap.bundle, settings.swarm, agent or ())
    if bootstrap.ref is None:
        require_followable(bootstrap.bundle, path, settings)
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
    return ".".join(agents)[:_LONGEST_LABEL].rstrip(".-")
