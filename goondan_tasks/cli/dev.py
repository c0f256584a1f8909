"""``goondan dev``: Redis, an orchestrator, Flower, and a watch on the bundle."""

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from redis import Redis
from redis.exceptions import RedisError
from rich.text import Text

from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis, PortInUse
from broker_config.hard_end import END_SECONDS
from broker_config.options import CONCURRENCY
from broker_config.process_group import ProcessGroup
from broker_config.settings import Settings, SettingsError
from goondan_tasks.bundle import BundleError, inspect_bundle
from goondan_tasks.bundle.entries import Prober, bundle_entries
from goondan_tasks.bundle.inventory import read_text
from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.cli.addresses import why_not_free
from goondan_tasks.cli.bundles import finding_text, install_requirements
from goondan_tasks.cli.folder import VARIABLES, CheckedBundle, FolderRevisions, InstalledPackages, changes_of
from goondan_tasks.cli.options import BundleArgument, Concurrency, Install, Verbose, flag
from goondan_tasks.cli.output import (
    Screen,
)
from goondan_tasks.cli.servers import FLOWER_PORT, LOOPBACK, node_name
from goondan_tasks.cli.session import (
    Interruption,
    Session,
    chosen_bundle,
    chosen_settings,
    require_broker,
    takes_session,
)
from goondan_tasks.connectors.connections import answering, runnable
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, GoondanError, require_extra
from goondan_tasks.contract.redaction import KNOWN_SECRETS, is_named_as_secret
from goondan_tasks.contract.wording import printable
from goondan_tasks.fleet.agent_registry import AgentRecord, describe_agents
from goondan_tasks.instances.earlier import earlier_workspace
from goondan_tasks.instances.table import encoded, instances_directory
from goondan_tasks.machine import javascript
from goondan_tasks.machine.process import is_loopback, url_at
from goondan_tasks.orchestrator.orchestrator import Fleet, Orchestrator, Rules, patience_of
from goondan_tasks.orchestrator.supervisor import (
    PROGRAM,
    KeptProgram,
    LoggedProcess,
    Supervisor,
    start_in_group,
    worker_command,
)
from goondan_tasks.revisions.active import Activation

#: how many ports from the usual one on are tried
_PORTS = 100
#: where GOONDAN_HTTP_PORT names any free one
_HTTP_PORT = 8765
_PASSWORD_IN_URL = re.compile(r"://[^/@\s:]*:([^/@\s]+)@")
#: how long dev waits for a server to give its port to the next one
_SERVER_END_SECONDS = 5.0
_OWN_NAME, _NARROWEST = "dev", 15
#: a change of these files restarts workers that run the folder itself
_CODE = {".py", ".yaml", ".yml", *javascript.SUFFIXES}
_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta")

#: the orchestrator's events that dev shows; the workers' own lines show the others
_EVENTS = {
    "orchestrator.worker_crashed": (
        "a worker of {agent} has crashed ({crashes} in a row), next start {next_start}"
    ),
    "orchestrator.workers_separated": (
        "from now on each of these {agents} agents has a worker of its own, so that only one that crashes is "
        "not served"
    ),
    "orchestrator.worker_ended": "a worker of {agent} has ended with status {status}",
    "orchestrator.calls_ended": "{calls} that waited for {agent} ended with E_AGENT_UNAVAILABLE",
    "orchestrator.redis_away": "Redis cannot be reached: {reason}",
    "orchestrator.redis_back": "Redis can be reached again.",
}


@takes_session
def dev(
    session: Session,
    context: typer.Context,
    path: BundleArgument = None,
    concurrency: Concurrency = CONCURRENCY,
    worker_per_agent: Annotated[
        bool, flag("Run a worker for each agent, not one for all of them.", "--worker-per-agent")
    ] = False,
    with_flower: Annotated[bool, flag("Also run Flower.", "--flower/--no-flower")] = True,
    with_server: Annotated[bool, flag("Also serve HTTP.", "--serve/--no-serve")] = True,
    install: Install = False,
    verbose: Verbose = False,
) -> None:
    """Run Redis, a worker for all agents, the Connections, `goondan serve` and Flower, until Ctrl-C.

    When the bundle changes, it is checked and the workers load it without a restart; running calls finish
    with the code they began with. While the bundle has errors, the workers keep the last valid version.
    Without --redis-url or GOONDAN_REDIS_URL a private Redis runs, whose data, password and port are kept in
    GOONDAN_STATE_ROOT for the next start. Variables in a file .env beside the bundle are added to the
    environment.
    """
    if path is not None and context.params["bundle"] is not None:
        raise typer.BadParameter("give the bundle either as BUNDLE or with --bundle.")
    require_extra("all", "celery", "flower", "httpx2", "uvicorn", "watchfiles")
    bundle = path.absolute() if path else chosen_bundle(session.settings)
    screen, interruption = DevScreen(), Interruption(session.settings.grace_seconds + END_SECONDS)
    if install:
        install_requirements(bundle, session.output)
    if names := add_variables(bundle):
        screen.say(f"Read from .env: {', '.join(names)}")
    options = {name: context.params[name] for name in ("redis_url", "bundle", "swarm", "workspace")}
    session = replace(session, settings=chosen_settings(**options))
    check = FolderCheck(bundle, session.settings, screen)
    with interruption.listening(), check, _dev_redis(session.settings, bundle) as (settings, own):
        session = replace(session, settings=settings)
        with ProcessGroup() as group, connect(settings.redis_url, name="goondan-dev") as redis:
            command = partial(worker_command, concurrency=concurrency, verbose=verbose)
            rules = Rules(is_always_needed=True, are_together=not worker_per_agent)
            server = _server_url(settings) if with_server else None
            running = _Dev(session, check, screen, group, redis, command, rules, server)
            running.serve()
            url = running.start_flower() if with_flower else None
            checked, is_own = check.passed, own is not None
            places = {"Console": _console_url(settings, server), "Flower": url, "HTTP": server}
            screen.places(settings, places, bundle, checked.workspace, mode=running.mode, is_own_redis=is_own)
            earlier = earlier_workspace(checked.bundle, settings, redis)
            if earlier is not None and not earlier.is_past:
                screen.say(f"{earlier.message}\n{earlier.remedy}")
            if session.output.as_json:
                agents = [agent.name for agent in checked.agents]
                started = {"bundle": str(bundle), "agents": agents, "workspace": checked.workspace}
                urls = {"flowerUrl": url, "serverUrl": server, "consoleUrl": places["Console"]}
                session.output.document({**started, "redisUrl": settings.redis_url, **urls})
            packages = InstalledPackages()
            for changed in changes_of(bundle, settings.state_root_path, interruption.asked, screen.say):
                if own is not None and own.process.poll() is not None:
                    own.launch()
                    screen.say("Redis had exited. It runs again, with the same address and data.")
                running.look()
                if packages.have_changed():
                    running.restart("Other Python packages are installed")
                elif changed or running.is_behind:
                    running.follow(changed, interruption.asked)
            screen.say(
                f"Stopping: running calls have {settings.grace_seconds:g} s; another Ctrl-C ends them now."
            )
            running.orchestrator.stop()
    raise typer.Exit(interruption.exit_code)


class FolderCheck(contextlib.AbstractContextManager["FolderCheck"]):
    """Checks a bundle repeatedly; the first time in the constructor.

    Raises:
        ConfigError: the bundle has errors, or lacks the Swarm.
    """

    def __init__(self, path: Path, settings: Settings, screen: "DevScreen") -> None:
        self.path = path
        self._settings, self._screen = settings, screen
        self._prober = Prober()
        #: the last version without errors
        self.passed = self.run()

    def run(self) -> CheckedBundle:
        """Check the bundle: show every warning, and describe the agents; raises ConfigError."""
        entries = bundle_entries(self.path)
        records = dict(zip(entries, self._prober.import_entries(entries), strict=True))
        bundle, findings = inspect_bundle(self.path, records=records)
        if bundle is None:
            raise BundleError(findings)
        for finding in findings:
            self._screen.say(finding_text(finding))
        agents = describe_agents(bundle, self._settings.swarm, self._settings.workspace)
        self.passed = CheckedBundle(bundle, agents)
        return self.passed

    def prepare(self) -> None:
        """Prepare for the next check."""
        with contextlib.suppress(OSError):  # too many processes: the next check tries again
            self._prober.start_ahead()

    def __exit__(self, *_: object) -> None:
        self._prober.close()


class _Dev:
    """Flower, and the workers of a bundle, which an orchestrator keeps running."""

    def __init__(
        self,
        session: Session,
        check: "FolderCheck",
        screen: "DevScreen",
        group: ProcessGroup,
        redis: Redis,
        worker_command: Callable[[Sequence[str]], Sequence[str]],
        rules: Rules,
        server_url: str | None = None,
    ) -> None:
        self._session, self._settings = session, session.settings
        self._server_url = server_url
        self._check, self._screen, self._redis, self._rules = check, screen, redis, rules
        self._group, self._environment = group, session.environment(bundle=check.path)
        self._supervisor = Supervisor(
            lambda agents: self._start(
                f"worker {agents[0]}" if len(agents) == 1 else "worker", worker_command(agents)
            ),
            patience_of(self._settings, check.passed.bundle),
        )
        #: ``None`` if the workers run the folder itself and are restarted for each change
        self._revisions: FolderRevisions | None = None
        #: the revision that was offered last
        self._ref: str | None = None
        #: the same, until its outcome was shown
        self._pending_ref: str | None = None
        self.orchestrator = self._orchestrator_of(())
        self._is_ready = self._is_valid = True
        #: runs the Connections, if the bundle has any
        self._connections: KeptProgram | None = None
        #: serves HTTP, unless nothing is to
        self._server: KeptProgram | None = None
        self._served_apps: Mapping[str, OAuthAppResource] = {}
        self._answers_requests = False
        #: whether a change could not be offered because Redis was unreachable
        self.is_behind = False

    def serve(self) -> None:
        """Start workers for the last valid bundle; the previous ones finish their calls."""
        path, checked = self._check.path, self._check.passed
        self.orchestrator = self._orchestrator_of(checked.agents)
        with contextlib.suppress(RedisError, BrokerUnreachableError):
            _end_dead_workers(self._fleet_of(checked.agents))
        try:
            self._revisions = FolderRevisions.of(path, checked, self._settings, self._redis)
            self._ref = self._revisions.offer()
        except (GoondanError, RedisError, ValueError) as error:
            self._revisions = None
            self._screen.say(f"Each change of the bundle will restart the workers: {error}")
        self._environment = self._session.environment(bundle=path, **self.mode)
        self.orchestrator.restart()
        self.orchestrator.look()
        self._is_ready, self._pending_ref = False, None
        self._run_connections()
        self._run_server()

    @property
    def mode(self) -> dict[str, object]:
        """The settings that make workers load changes without a restart, and build callback URLs."""
        follows: dict[str, object] = {"dev": "on"} if self._revisions is not None else {}
        if self._server_url is None or self._settings.public_url or not is_loopback(self._settings.http_host):
            return follows
        return {**follows, "public_url": self._server_url}

    def start_flower(self) -> str | None:
        """Start Flower on the first free port and return its URL; ``None`` if none is free."""
        port = _free_port(LOOPBACK, FLOWER_PORT)
        if port is None:
            return None
        command = [*PROGRAM, "flower", "--address", LOOPBACK, "--port", str(port)]
        self._supervisor.keep(
            lambda: self._start("flower", command), lambda text: self._screen.line("flower", text)
        )
        return f"http://{LOOPBACK}:{port}"

    def _run_connections(self) -> None:
        """Run the Connections of the last valid bundle; the program that has run the earlier ones ends.

        The server has those that answer requests.
        """
        if self._connections is not None:
            self._supervisor.drop(self._connections)
            self._connections = None
        bundle = self._check.passed.bundle
        served = answering(bundle)
        if names := [one.name for one in runnable(bundle) if one not in served]:
            command = [*PROGRAM, "connectors", "run", *names]
            self._connections = self._supervisor.keep(
                lambda: self._start("connectors", command, dev="on"),
                lambda text: self._screen.line("connectors", text),
                may_end=True,  # when all connectors have returned
            )

    def _run_server(self) -> None:
        """Serve HTTP for the last valid bundle; the program that has served the earlier one ends first."""
        if self._server_url is None:
            return
        self._served_apps = self._check.passed.bundle.oauth_apps
        self._answers_requests = bool(answering(self._check.passed.bundle))
        if self._server is not None:
            self._supervisor.drop(self._server)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the next one then waits for the port
                self._server.worker.process.wait(_SERVER_END_SECONDS)
        command = [*PROGRAM, "serve", "--port", self._server_url.rpartition(":")[2]]
        self._server = self._supervisor.keep(
            lambda: self._start("serve", command, dev="on"), lambda text: self._screen.line("serve", text)
        )

    def look(self) -> None:
        """Restart workers that have ended; report once when all agents are served or a change is loaded."""
        self.orchestrator.look()
        with contextlib.suppress(RedisError, ValueError):
            if not self._is_ready:
                self._is_ready = self.orchestrator.are_served()
                if self._is_ready:
                    self._screen.say("Ready: every agent has a worker.")
            elif self._pending_ref is not None and self._revisions is not None:
                self._report(self._revisions.activation(self._pending_ref))
            else:
                self._check.prepare()

    def _report(self, activation: Activation) -> None:
        """Report once whether the workers have loaded a change."""
        if activation.status == "active" and self.orchestrator.are_served(activation.ref):
            self._screen.say("The bundle has changed; the workers have loaded it.")
        elif activation.status == "failed":
            why = f"{activation.code}: {activation.reason}"
            self._screen.say(
                f"The bundle has changed, but cannot be loaded; the workers keep the last version.\n{why}"
            )
        elif activation.status in {"active", "proposed"}:
            return
        self._pending_ref = None

    def follow(self, changed: Collection[Path], stop: threading.Event) -> None:
        """Offer a changed bundle to the workers, unless it has errors; restart them if necessary."""
        revisions, self.is_behind = self._revisions, False
        if self._has_other_variables(changed):
            self.restart("The bundle's variables have changed")
        elif revisions is not None:
            try:
                self._offer(revisions, stop)
            except (GoondanError, ValueError) as error:
                self.restart(f"The bundle has changed, and cannot be loaded without a restart ({error})")
            except RedisError:
                self.is_behind = True
        elif any(path.suffix in _CODE for path in changed):
            self.restart("The bundle has changed")

    def _has_other_variables(self, changed: Collection[Path]) -> bool:
        """Return whether the workers' environment is out of date: a process keeps its variables for life."""
        if any(path.name.startswith(VARIABLES) and not path.is_dir() for path in changed):
            return True
        return self._environment != self._session.environment(bundle=self._check.path, **self.mode)

    def _offer(self, revisions: FolderRevisions, stop: threading.Event) -> None:
        if revisions.current() == self._ref:
            if not self._is_valid:
                self._screen.say("The bundle is valid again: it is what the workers run.")
            self._is_valid = True
        elif (checked := self._checked()) is None:
            return
        elif not revisions.accepts(checked, self._settings):
            self._restart("The bundle has another workspace or changeset policy")
        else:
            self._ref = self._pending_ref = revisions.offer(stop)
            self.orchestrator = self._orchestrator_of(checked.agents)
            self.orchestrator.restart(is_whole=False)
            self.orchestrator.look()
            self._run_connections()
            has_changed = checked.bundle.oauth_apps != self._served_apps
            if has_changed or self._answers_requests or answering(checked.bundle):
                self._run_server()

    def restart(self, reason: str) -> None:
        """Restart the workers, unless the bundle has errors."""
        if self._checked() is not None:
            self._restart(reason)

    def _restart(self, reason: str) -> None:
        self._screen.say(f"{reason}: restarting the workers.")
        self.serve()

    def _checked(self) -> CheckedBundle | None:
        """Check the bundle; show its errors and return ``None`` if it has any."""
        self._is_valid = False
        try:
            add_variables(self._check.path)
            checked = self._check.run()
        except ConfigError as error:
            text = "The bundle has changed, but is not valid; the workers keep the last version."
            self._screen.say(f"{text}\n{error.message}")
            return None
        self._is_valid = True
        return checked

    def _start(self, name: str, command: Sequence[str], **settings: str) -> LoggedProcess:
        """Start a program; ``settings`` are its own: ``dev`` lets it start without a Connection's secrets."""
        environment = self._session.environment(bundle=self._check.path, **{**self.mode, **settings})
        return start_in_group(self._group, name, command, environment=environment, tell=self._screen.line)

    def _fleet_of(self, agents: Sequence[AgentRecord]) -> Fleet:
        return Fleet(self._redis, self._settings, agents, node_name("dev"))

    def _orchestrator_of(self, agents: Sequence[AgentRecord]) -> Orchestrator:
        fleet = self._fleet_of(agents)
        names = [agent.name for agent in agents]
        return Orchestrator(names, fleet, self._supervisor, rules=self._rules, log=self._screen)


class DevScreen:
    """Shows on stderr what dev does, and the output of its processes with their names; thread-safe."""

    def __init__(self) -> None:
        self._screen = Screen(stderr=True)
        self._lock = threading.Lock()
        self._colors = {_OWN_NAME: "bold"}
        self._width = _NARROWEST

    def line(self, name: str, text: str | Text) -> None:
        """Write text from a process, with the process's name before each line."""
        content = text if isinstance(text, Text) else Text(printable(KNOWN_SECRETS.hidden_in_log(text)))
        with self._lock:
            self._width = max(self._width, len(name))
            color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
            prefix = Text(f"{name:<{self._width}} | ", style=color)
            for row in content.split("\n"):
                self._screen.print(prefix + row, soft_wrap=True)

    def say(self, text: str | Text) -> None:
        self.line(_OWN_NAME, text)

    def debug(self, event: str, *_: Any, **fields: Any) -> None:
        """Show an event that the orchestrator logs, unless the workers' own lines show it."""
        if event in _EVENTS:
            self.say(_EVENTS[event].format(**fields))

    info = warning = error = debug

    def places(
        self,
        settings: Settings,
        urls: Mapping[str, str | None],
        bundle: Path,
        workspace: str,
        *,
        mode: Mapping[str, object],
        is_own_redis: bool,
    ) -> None:
        """Show where everything is, and the export line for other terminals, ``mode`` included."""
        self.say(f"{'Redis:':<8} {settings.redis_url}")
        if not is_own_redis:  # set by the export line of another dev, perhaps
            self.say("         not a private one: from --redis-url or GOONDAN_REDIS_URL;")
            self.say("         workers of other bundles there take calls to agents with the same names")
        for name, url in urls.items():
            if url is not None:
                self.say(f"{name + ':':<8} {url}")
        files = instances_directory(settings.state_root_path, encoded(workspace))
        self.say(f"{'Files:':<8} {files} (workspace {workspace})")
        self.say("In another terminal:")
        pasted = {"redis_url": settings.redis_url, "bundle": bundle}
        pasted |= {"workspace": workspace} if settings.workspace else {}
        exports = (
            f"GOONDAN_{name.upper()}={shlex.quote(str(value))}" for name, value in {**pasted, **mode}.items()
        )
        self.say("  export " + " ".join(exports))


def _server_url(settings: Settings) -> str | None:
    """Return where `goondan serve` is to listen; ``None`` if many ports are taken."""
    port = _free_port(settings.http_host, settings.http_port or _HTTP_PORT)
    return None if port is None else url_at(settings.http_host, port)


def _console_url(settings: Settings, server: str | None) -> str | None:
    """Return where the console is; `goondan serve` opens it where tokens or the address keep others out."""
    has_tokens = bool(settings.http_token or settings.http_tokens)
    return f"{server}/console" if server and (has_tokens or is_loopback(settings.http_host)) else None


def _free_port(host: str, first: int) -> int | None:
    """Return the first free port from ``first`` on; ``None`` if many are taken."""
    ports = range(first, min(first + _PORTS, 65_536))
    return next((port for port in ports if why_not_free(host, port) is None), None)


def add_variables(bundle: Path) -> list[str]:
    """Add the variables in the ``.env`` beside a bundle to the environment; return the names of those added.

    Values with the name of a secret, and passwords in URLs, are masked from now on.

    Raises:
        ConfigError: the file cannot be read; the message quotes nothing of its content.
    """
    file = (bundle if bundle.is_dir() else bundle.parent) / VARIABLES
    # a directory of this name is a virtual environment
    content, faults = ("", []) if file.is_dir() or not os.path.lexists(file) else read_text(file)
    try:
        if faults:
            raise SettingsError(faults[0].error.message)
        added = Settings.add_variables(content)
    except SettingsError as error:
        suggestion = "Write lines NAME=value; quote values with spaces, and close the quotes."
        raise ConfigError(f"{file}: {error}.", suggestion=suggestion) from None
    for name, value in added.items():
        for secret in [value] if is_named_as_secret(name) else _PASSWORD_IN_URL.findall(value):
            KNOWN_SECRETS.add(secret)
    return list(added)


@contextlib.contextmanager
def _dev_redis(settings: Settings, bundle: Path) -> Iterator[tuple[Settings, EmbeddedRedis | None]]:
    """Yield settings whose Redis answers, and that Redis if it is private; it ends with the block.

    Raises:
        BrokerUnreachableError: the Redis in the settings does not answer.
        EmbeddedRedisError: the private one does not start.
        ConfigError: the state root cannot hold its data.
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
        yield settings.model_copy(update={"redis_url": redis.url}), redis
    finally:
        redis.stop()


def _start_kept_redis(directory: Path) -> EmbeddedRedis:
    """Start a Redis with the data, the password and, if it is free, the port of the last start.

    So a URL that was copied into another terminal stays valid.
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


def _end_dead_workers(fleet: Fleet) -> None:
    """Clean up after workers of this machine that were killed, perhaps with an earlier dev."""
    for worker in fleet.workers():
        if worker.is_process(worker.pid):
            try:
                os.kill(worker.pid, 0)
            except ProcessLookupError:
                fleet.end_worker(worker.row)
            except PermissionError:
                continue  # another user's, and alive
