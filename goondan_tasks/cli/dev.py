"""``goondan dev``: Redis, a worker for every agent and Flower in one terminal, until Ctrl-C."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from broker_config.connections import connect
from broker_config.process_group import ProcessGroup
from broker_config.settings import Settings
from goondan_tasks.bundle import BundleError, inspect_bundle, load_bundle
from goondan_tasks.cli.bundle_watch import BundleWatch
from goondan_tasks.cli.dev_log import DevLog
from goondan_tasks.cli.dev_processes import DevProcesses
from goondan_tasks.cli.dev_redis import DevRedis, dev_redis
from goondan_tasks.cli.dev_screen import DevScreen
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.selection import chosen_bundle
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.supervisor import Supervisor
from goondan_tasks.errors import ConfigError
from goondan_tasks.orchestrator.orchestrator import patience_of
from goondan_tasks.orchestrator.supervisor import GroupProcess as DevWorker
from goondan_tasks.orchestrator.supervisor import Supervisor as Members
from goondan_tasks.orchestrator.supervisor import worker_command
from goondan_tasks.roster import AgentRecord, describe_agents

TICK_SECONDS = 0.2


@takes_session
def dev(
    session: Session,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE", help="A directory or file; else GOONDAN_BUNDLE, else this directory."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Calls at once in each worker.")
    ] = 8,
    with_flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Run Flower too.")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level debug.")] = False,
) -> None:
    """Run Redis, a worker for every agent and Flower, until Ctrl-C.

    When the bundle changes it is checked and its workers are started anew; while it has errors the old
    ones go on. Without --redis-url or GOONDAN_REDIS_URL a private Redis runs, whose data, password and
    port are kept in GOONDAN_STATE_ROOT for the next time.
    """
    bundle = path.absolute() if path else chosen_bundle(session.settings)
    worker_options = ["--concurrency", str(concurrency), *(["--verbose"] if verbose else [])]
    screen, interruption = DevScreen(), Interruption()
    agents = checked_agents(bundle, session.settings, screen)
    with interruption.listening(), dev_redis(session.settings, bundle) as redis:
        settings = redis.settings
        session = replace(session, settings=settings)
        with _processes(session, bundle, screen, worker_options) as processes:
            processes.serve(agents)
            flower_url = processes.start_flower() if with_flower else None
            screen.places(settings.redis_url, flower_url, bundle, is_own_redis=redis.own is not None)
            if session.output.as_json:
                session.output.document(
                    {
                        "bundle": str(bundle),
                        "agents": [agent.name for agent in agents],
                        "redisUrl": settings.redis_url,
                        "flowerUrl": flower_url,
                    }
                )
            _attend(redis, bundle, processes, screen, interruption.asked)
    raise typer.Exit(interruption.exit_code)


def checked_agents(bundle: Path, settings: Settings, screen: DevScreen) -> list[AgentRecord]:
    """Show every finding about the bundle, and describe the agents of its Swarm.

    Raises:
        ConfigError: the bundle has errors, or no such Swarm.
    """
    checked, findings = inspect_bundle(bundle)
    if checked is None:
        raise BundleError(findings)
    screen.findings(findings)
    return describe_agents(checked, settings.swarm, settings.workspace)


@contextmanager
def _processes(
    session: Session, bundle: Path, screen: DevScreen, worker_options: Sequence[str]
) -> Iterator[DevProcesses]:
    """Yield the processes; whatever runs at the end of the block ends with it."""
    settings, environment = session.settings, session.environment(bundle=bundle)

    def start(agent: str) -> DevWorker:
        command, name = worker_command(agent, worker_options), f"worker {agent}"
        return DevWorker.start(group, name, command, environment=environment, tell=screen.line)

    with ProcessGroup() as group, connect(settings.redis_url, name="goondan-dev") as redis:
        supervisor = Supervisor(group, environment, tell=screen.line, grace_seconds=settings.grace_seconds)
        members = Members(start, patience_of(settings, load_bundle(bundle)))
        processes = DevProcesses(supervisor, members, redis, settings, DevLog(screen))
        yield processes
        screen.say(f"Stopping: running calls have {settings.grace_seconds:g} s; again Ctrl-C ends them now.")
        processes.end()


def _attend(
    redis: DevRedis, bundle: Path, processes: DevProcesses, screen: DevScreen, stop: threading.Event
) -> None:
    """Keep everything running, and follow the bundle, until ``stop`` is set."""
    watch = BundleWatch(bundle, redis.settings.state_root_path, stop)
    watch.start()
    while not stop.wait(TICK_SECONDS):
        if redis.revive():
            screen.say("Redis had ended. It runs again, with its address and its data.")
        processes.look_after()
        if processes.became_ready():
            screen.say("Ready: every agent has a worker.")
        if watch.has_changed():
            _follow(redis.settings, bundle, processes, screen, stop)


def _follow(
    settings: Settings, bundle: Path, processes: DevProcesses, screen: DevScreen, stop: threading.Event
) -> None:
    try:
        agents = checked_agents(bundle, settings, screen)
    except ConfigError as error:
        screen.say(f"The bundle has changed, and is not valid; the workers go on as before.\n{error.message}")
        return
    if processes.follows(bundle, agents, stop):
        screen.say(
            "The bundle has changed by a commit: its workers go on, and take it with their next Steps."
        )
    else:
        screen.say("The bundle has changed: its workers are started anew.")
        processes.serve(agents)
