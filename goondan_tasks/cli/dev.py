"""``goondan orchestrator``; and ``goondan dev``: an orchestrator, a Redis, a watcher and Flower."""

import contextlib
import hashlib
import os
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from redis import Redis
from redis.exceptions import RedisError
from rich.text import Text
from watchfiles import PythonFilter, watch

from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis, PortInUse
from broker_config.keys import Keys
from broker_config.process_group import ProcessGroup
from broker_config.settings import Settings, hidden_password
from goondan_tasks.agent_registry import AgentRecord, AgentRegistry, describe_agents
from goondan_tasks.bundle import BundleError, inspect_bundle, load_bundle
from goondan_tasks.cli.bundles import finding_text
from goondan_tasks.cli.options import (
    BundleArgument,
    Concurrency,
    ServedAgents,
    Verbose,
    flag,
    seconds_option,
)
from goondan_tasks.cli.output import Screen, printable
from goondan_tasks.cli.servers import FLOWER_PORT, LOOPBACK, metrics_server, why_not_free
from goondan_tasks.cli.session import (
    Interruption,
    Session,
    chosen_agents,
    chosen_bundle,
    require_broker,
    takes_session,
)
from goondan_tasks.errors import ConfigError, GoondanError
from goondan_tasks.logs import configure_logging
from goondan_tasks.orchestrator.orchestrator import IDLE_SECONDS, Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import (
    PROGRAM,
    LoggedProcess,
    Supervisor,
    start_detached,
    start_in_group,
    worker_command,
)
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import RevisionSource

#: how often the orchestrator and dev look
LOOK_SECONDS, TICK_SECONDS = 0.5, 0.2
#: how long a commit may take from the first file that it changes here to its proposal
COMMIT_SECONDS = 2.0

_FLOWER_PORTS = range(FLOWER_PORT, FLOWER_PORT + 100)
_OWN_NAME, _NARROWEST = "dev", 15
_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta")

#: the orchestrator's events that dev shows; the workers' own lines cover the others
_EVENTS = {
    "orchestrator.worker_crashed": (
        "a worker of {agent} has crashed ({crashes} in a row), next start {next_start}"
    ),
    "orchestrator.worker_ended": "a worker of {agent} has ended with status {status}",
    "orchestrator.calls_ended": "{calls} that waited for {agent} ended with E_AGENT_UNAVAILABLE",
    "orchestrator.redis_away": "Redis cannot be reached: {reason}",
    "orchestrator.redis_back": "Redis can be reached again.",
}


@takes_session
def orchestrator(
    session: Session,
    agent: ServedAgents = None,
    idle_seconds: Annotated[
        float, seconds_option("Stop a worker that has been idle for S s.")
    ] = IDLE_SECONDS,
    concurrency: Concurrency = 8,
    verbose: Verbose = False,
) -> None:
    """Start a worker for each agent when something waits for it, and stop it when it has been idle.

    Workers that were started otherwise count, and are left alone. Any number of orchestrators may run. With
    the first SIGTERM or Ctrl-C its workers drain, with the second they are killed.
    """
    settings, output = session.settings, session.output
    path = chosen_bundle(settings)
    bundle = load_bundle(path)
    agents = chosen_agents(bundle, settings.swarm, agent or ())
    require_broker(settings)
    configure_logging(settings)
    name = _node_name("orchestrator")
    if output.as_json:
        output.document({"orchestrator": name, "agents": agents})
    output.note(f"Looking after {', '.join(agents)} on {hidden_password(settings.redis_url)}")
    options, environment = _worker_options(concurrency, verbose), session.environment(bundle=path)
    supervisor = Supervisor(
        lambda one: start_detached(worker_command(one, options), environment), patience_of(settings, bundle)
    )
    known = describe_agents(bundle, settings.swarm, settings.workspace)
    interruption, port = Interruption(), settings.metrics_port
    metrics = contextlib.nullcontext() if port is None else metrics_server(session, port)
    with (
        interruption.listening(),
        connect(settings.redis_url, name="goondan-orchestrator") as redis,
        metrics as url,
    ):
        if url is not None:
            output.note(f"Metrics: {url}")
        fleet = Fleet(redis, settings, known, name)
        orchestrating = Orchestrator(agents, fleet, supervisor, rules=Rules(idle_seconds))
        while not interruption.asked.wait(LOOK_SECONDS):
            orchestrating.look()
        orchestrating.stop()


@takes_session
def dev(
    session: Session,
    context: typer.Context,
    path: BundleArgument = None,
    concurrency: Concurrency = 8,
    with_flower: Annotated[bool, flag("Run Flower too.", "--flower/--no-flower")] = True,
    verbose: Verbose = False,
) -> None:
    """Run Redis, a worker for every agent and Flower, until Ctrl-C.

    When the bundle changes it is checked and its workers are restarted; while it has errors the old
    ones go on. Without --redis-url or GOONDAN_REDIS_URL a private Redis runs, whose data, password and
    port are kept in GOONDAN_STATE_ROOT for the next time.
    """
    if path is not None and context.params["bundle"] is not None:
        raise typer.BadParameter("name the bundle once: as BUNDLE, or with --bundle.")
    bundle = path.absolute() if path else chosen_bundle(session.settings)
    screen, interruption = DevScreen(), Interruption()
    agents = _checked_agents(bundle, session.settings, screen)
    with interruption.listening(), _dev_redis(session.settings, bundle) as (settings, own):
        session = replace(session, settings=settings)
        with ProcessGroup() as group, connect(settings.redis_url, name="goondan-dev") as redis:
            running = _Dev(session, bundle, screen, group, redis, _worker_options(concurrency, verbose))
            running.serve(agents)
            url = running.start_flower() if with_flower else None
            screen.places(settings.redis_url, url, bundle, is_own_redis=own is not None)
            if session.output.as_json:
                started = {"bundle": str(bundle), "agents": [agent.name for agent in agents]}
                session.output.document({**started, "redisUrl": settings.redis_url, "flowerUrl": url})
            for has_changed in changes_of(bundle, settings.state_root_path, interruption.asked):
                if own is not None and own.process.poll() is not None:
                    own.launch()
                    screen.say("Redis had ended. It runs again, with its address and its data.")
                running.look()
                if has_changed:
                    running.follow(interruption.asked)
            screen.say(
                f"Stopping: running calls have {settings.grace_seconds:g} s; again Ctrl-C ends them now."
            )
            running.orchestrator.stop()
    raise typer.Exit(interruption.exit_code)


class _Dev:
    """The workers of a bundle, which an orchestrator keeps, and Flower; :meth:`serve` starts workers."""

    def __init__(
        self,
        session: Session,
        bundle: Path,
        screen: "DevScreen",
        group: ProcessGroup,
        redis: Redis,
        options: Sequence[str],
    ) -> None:
        self._settings, self._bundle, self._screen, self._redis = session.settings, bundle, screen, redis
        self._group, self._environment = group, session.environment(bundle=bundle)
        self._supervisor = Supervisor(
            lambda agent: self._start(f"worker {agent}", worker_command(agent, options)),
            patience_of(self._settings, load_bundle(bundle)),
        )
        self._agents: list[str] = []
        self.orchestrator = self._orchestrator_of(())
        self._is_ready = False

    def serve(self, agents: Sequence[AgentRecord]) -> None:
        """Start workers of the bundle as it is now; the previous ones finish their calls."""
        self._agents = [agent.name for agent in agents]
        self.orchestrator = self._orchestrator_of(agents)
        with contextlib.suppress(RedisError):
            _forget_dead_workers(AgentRegistry(self._redis, Keys(self._settings.namespace)))
        self.orchestrator.restart()
        self.orchestrator.look()
        self._is_ready = False

    def start_flower(self) -> str | None:
        """Start Flower on the first free port and return its URL, ``None`` if none is free."""
        port = next((port for port in _FLOWER_PORTS if why_not_free(LOOPBACK, port) is None), None)
        if port is None:
            return None
        command = [*PROGRAM, "flower", "--address", LOOPBACK, "--port", str(port)]
        self._supervisor.keep(
            lambda: self._start("flower", command), lambda text: self._screen.line("flower", text)
        )
        return f"http://{LOOPBACK}:{port}"

    def look(self) -> None:
        """Restart what has ended, and say once after each :meth:`serve` that every agent has a worker."""
        self.orchestrator.look()
        if not self._is_ready:
            with contextlib.suppress(RedisError):
                self._is_ready = self.orchestrator.are_served()
            if self._is_ready:
                self._screen.say("Ready: every agent has a worker.")

    def follow(self, stop: threading.Event) -> None:
        """Restart the workers for a changed bundle, unless it has errors or they take the change."""
        say = self._screen.say
        try:
            agents = _checked_agents(self._bundle, self._settings, self._screen)
        except ConfigError as error:
            return say(
                f"The bundle has changed, and is not valid; the workers go on as before.\n{error.message}"
            )
        has_same_agents = [agent.name for agent in agents] == self._agents
        if has_same_agents and is_followed(self._bundle, agents[0], self._settings, self._redis, stop=stop):
            return say(
                "The bundle has changed by a commit: its workers go on, and take it with their next Steps."
            )
        say("The bundle has changed: its workers are restarted.")
        return self.serve(agents)

    def _start(self, name: str, command: Sequence[str]) -> LoggedProcess:
        tell = self._screen.line
        return start_in_group(self._group, name, command, environment=self._environment, tell=tell)

    def _orchestrator_of(self, agents: Sequence[AgentRecord]) -> Orchestrator:
        fleet = Fleet(self._redis, self._settings, agents, _node_name("dev"))
        rules = Rules(is_always_needed=True)
        names = [agent.name for agent in agents]
        return Orchestrator(names, fleet, self._supervisor, rules=rules, log=self._screen)


class DevScreen:
    """Shows on stderr what dev does, and its processes' lines behind their names; it is thread-safe."""

    def __init__(self) -> None:
        self._screen = Screen(stderr=True)
        self._lock = threading.Lock()
        self._colors = {_OWN_NAME: "bold"}
        self._width = _NARROWEST

    def line(self, name: str, text: str | Text) -> None:
        """Write text from a process, each line behind the process's name."""
        content = text if isinstance(text, Text) else Text(printable(text))
        with self._lock:
            self._width = max(self._width, len(name))
            color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
            prefix = Text(f"{name:<{self._width}} | ", style=color)
            for row in content.split("\n"):
                self._screen.print(prefix + row, soft_wrap=True)

    def say(self, text: str | Text) -> None:
        """Write a line of dev's own."""
        self.line(_OWN_NAME, text)

    def debug(self, event: str, *_: Any, **fields: Any) -> None:
        """Write an event that the orchestrator logs, if its workers' own lines do not show it."""
        if event in _EVENTS:
            self.say(_EVENTS[event].format(**fields))

    info = warning = error = debug

    def places(self, redis_url: str, flower_url: str | None, bundle: Path, *, is_own_redis: bool) -> None:
        """Write where everything is, and what to paste into another terminal."""
        self.say(f"Redis:  {redis_url}")
        if not is_own_redis:  # the line of another dev, pasted before into this terminal
            self.say("        not a private one: from --redis-url or GOONDAN_REDIS_URL;")
            self.say("        workers of other bundles there take calls of agents with the same name")
        if flower_url:
            self.say(f"Flower: {flower_url}")
        self.say("In another terminal:")
        settings = {"GOONDAN_REDIS_URL": redis_url, "GOONDAN_BUNDLE": str(bundle)}
        self.say("  export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items()))


def changes_of(bundle: Path, state_root: Path, stop: threading.Event) -> Iterator[bool]:
    """Yield several times a second whether the bundle's YAML or Python has changed, until ``stop`` is set."""
    found = watch(
        bundle if bundle.is_dir() else bundle.parent,
        watch_filter=None,  # what a filter of its own drops, the watch would wait for without a word
        stop_event=stop,
        debounce=round(TICK_SECONDS * 1000),
        rust_timeout=round(TICK_SECONDS * 1000),
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    matters = files_that_matter(state_root)
    return (any(matters(*change) for change in changes) for changes in found)


def files_that_matter(state_root: Path) -> PythonFilter:
    """Return what tells a bundle's YAML and Python from what tools write, caches and editors' own files."""
    return PythonFilter(ignore_paths=[state_root], extra_extensions=(".yaml", ".yml"))


def is_followed(
    bundle: Path, agent: AgentRecord, settings: Settings, redis: Redis, *, stop: threading.Event
) -> bool:
    """Return whether the folder's content is active in the workspace of ``agent``, or is proposed there.

    A commit changes the folder before it is proposed, so this waits a moment where revisions are followed.
    """
    record = ActiveRevision(redis, Keys(settings.namespace), agent.workspace)
    try:
        source = RevisionSource.of(bundle, settings.bundle_remote)
        for _ in range(round(COMMIT_SECONDS / TICK_SECONDS)):
            state = record.state()
            if state is None:
                return False
            wanted = {state.active, state.proposed.new_ref if state.proposed else None}
            if str(source.current()) in wanted or stop.wait(TICK_SECONDS):
                return True
    except (GoondanError, RedisError, ValueError):
        return False  # the start of new workers reports what is wrong
    return False


def _node_name(kind: str) -> str:
    return f"{kind}-{os.getpid()}@{socket.gethostname()}"


def _worker_options(concurrency: int, verbose: bool) -> list[str]:
    return ["--concurrency", str(concurrency), *(["--verbose"] if verbose else [])]


def _checked_agents(bundle: Path, settings: Settings, screen: DevScreen) -> list[AgentRecord]:
    """Show every finding about the bundle, and describe the agents of its Swarm.

    Raises:
        ConfigError: the bundle has errors, or no such Swarm.
    """
    checked, findings = inspect_bundle(bundle)
    if checked is None:
        raise BundleError(findings)
    for finding in findings:
        screen.say(finding_text(finding))
    return describe_agents(checked, settings.swarm, settings.workspace)


@contextlib.contextmanager
def _dev_redis(settings: Settings, bundle: Path) -> Iterator[tuple[Settings, EmbeddedRedis | None]]:
    """Yield settings whose Redis answers, and that Redis if it is a private one, which ends with the block.

    Raises:
        BrokerUnreachableError: the Redis that was named does not answer.
        EmbeddedRedisError: the private one does not start.
        ConfigError: there is no place for its data.
    """
    if "redis_url" in settings.model_fields_set:
        require_broker(settings)
        yield settings, None
        return
    digest = hashlib.sha256(str(bundle).encode("utf-8", "backslashreplace")).hexdigest()
    try:
        redis = _start_kept_redis(settings.state_root_path / "dev" / digest[:16])
    except OSError as error:
        raise ConfigError(
            f"The state root {settings.state_root_path} cannot be used: {error}.",
            suggestion="Set GOONDAN_STATE_ROOT to a directory that this user may write.",
        ) from error
    try:
        yield settings.model_copy(update={"redis_url": redis.url, "broker_url": redis.url}), redis
    finally:
        redis.stop()


def _start_kept_redis(directory: Path) -> EmbeddedRedis:
    """Start a Redis with the data, the password and, if it is still free, the port of the last time.

    A URL that was copied into another terminal stays valid.
    """
    kept = directory / "port"
    port = None
    with contextlib.suppress(FileNotFoundError, ValueError):
        port = int(kept.read_text(encoding="ascii"))
    try:
        redis = EmbeddedRedis(directory=directory, port=port).start()
    except PortInUse:
        redis = EmbeddedRedis(directory=directory).start()
    kept.write_text(str(redis.port), encoding="ascii")
    return redis


def _forget_dead_workers(agent_registry: AgentRegistry) -> None:
    """Remove the records of this machine's workers that were killed, perhaps with an earlier dev."""
    for worker in agent_registry.workers():
        if worker.host == socket.gethostname():
            try:
                os.kill(worker.pid, 0)
            except ProcessLookupError:
                agent_registry.remove_worker(worker.row)
            except PermissionError:
                continue  # another user's, and alive
