"""What commands share: settings, the client, the bundle and its agents, checks of the broker, signals."""

import contextlib
import functools
import getpass
import inspect
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_args

import typer

from broker_config.confirmation import require_supported
from broker_config.connections import SERVERS, connect, is_supported, retrying
from broker_config.hard_end import END_SECONDS, HardEnd
from broker_config.refusals import NO_CLUSTER
from broker_config.settings import Settings, hidden_password
from goondan_tasks.cli.options import (
    All,
    DryRun,
    Ids,
    NewerThan,
    OfAgent,
    OfCode,
    OfFingerprint,
    OfInstance,
    OfSubject,
    OfText,
    OfTool,
    OlderThan,
    Yes,
    flag,
    name_option,
    option,
    this_bundle,
)
from goondan_tasks.cli.output import Output
from goondan_tasks.client import Client
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import AgentNotFoundError, BrokerUnreachableError
from goondan_tasks.contract.wording import closest
from goondan_tasks.fleet.audit import acting_as
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.machine.process import close_to_other_processes, sighup_ends_process

if TYPE_CHECKING:
    from goondan_tasks.bundle import Bundle

Own = ParamSpec("Own")

RedisUrl = Annotated[str | None, option("URL", "The Redis to use. Default: GOONDAN_REDIS_URL.")]
BundlePath = Annotated[Path | None, option("PATH", "The bundle. Default: GOONDAN_BUNDLE.")]
SwarmName = Annotated[str | None, option("NAME", "The Swarm of the bundle. Default: GOONDAN_SWARM.")]
WorkspaceName = Annotated[
    str | None, name_option("NAME", "The workspace. Default: GOONDAN_WORKSPACE.", "--workspace")
]
AsJson = Annotated[bool, flag("Print one JSON document on stdout, logs on stderr.", "--json")]

_OF_CALLS = {
    "tool": OfTool,
    "instance": OfInstance,
    "code": OfCode,
    "text": OfText,
    "subject": OfSubject,
    "fingerprint": OfFingerprint,
    "older_than": OlderThan,
    "newer_than": NewerThan,
}
_OPTION = inspect.Parameter.KEYWORD_ONLY
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Session:
    """The settings and the output of one run of a command."""

    settings: Settings
    output: Output

    def client(self) -> Client:
        """Return a client for these settings, for use in a ``with`` block.

        It loads the bundle when the agents are needed; a note reports one that is not valid.
        """
        return Client(self.settings, warn=self.output.note)

    def bundle(self) -> "Bundle":
        """Load the bundle that the settings name, or else that of the current directory.

        Raises:
            ConfigError: there is none, or it is not valid.
        """
        path = chosen_bundle(self.settings)
        from goondan_tasks.bundle import load_bundle  # most commands do without YAML

        return load_bundle(path)

    def environment(self, **overrides: object) -> dict[str, str]:
        """Return an environment that gives a child process these settings."""
        settings = self.settings
        ours = {"redis_url": settings.redis_url, "swarm": settings.swarm, "workspace": settings.workspace}
        return Settings.environment(**{**ours, **overrides})

    def confirm(self, question: str, *, is_confirmed: bool) -> None:
        """Ask for confirmation.

        Raises:
            typer.BadParameter: there is nobody to ask.
            typer.Abort: the answer is no.
        """
        if is_confirmed:
            return
        if not can_ask(self.output):
            raise typer.BadParameter(f"{question}: there is no terminal to ask on; give --yes to confirm.")
        typer.confirm(f"{question}?", abort=True, err=True)


def login() -> str:
    """Return the login name; empty if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""


def can_ask(output: Output) -> bool:
    """Return whether a person at a terminal can answer a question."""
    return not output.as_json and sys.stdin is not None and sys.stdin.isatty()


def chosen_settings(
    redis_url: str | None, bundle: Path | None, swarm: str | None, workspace: str | None
) -> Settings:
    """Load the settings; options of the command line override the environment.

    Raises:
        SettingsError: a variable has an invalid value.
    """
    settings = Settings.load(redis_url=redis_url, bundle=bundle, swarm=swarm, workspace=workspace)
    if settings.oauth_key is not None:
        close_to_other_processes()
    return settings


def takes_session(command: Callable[Concatenate[Session, Own], None]) -> Callable[..., None]:
    """Add the shared options to a command, which gets a :class:`Session` as its first argument."""

    def run(
        *,
        redis_url: RedisUrl = None,
        bundle: BundlePath = None,
        swarm: SwarmName = None,
        workspace: WorkspaceName = None,
        as_json: AsJson = False,
        **own: Any,
    ) -> None:
        settings = chosen_settings(redis_url, bundle, swarm, workspace)
        with acting_as(f"{login()}@{platform.node()}", "cli", login()):
            command(Session(settings, Output(as_json)), **own)  # type: ignore[call-arg]

    _, *own = inspect.signature(command).parameters.values()
    *shared, _ = inspect.signature(run).parameters.values()
    return _with_parameters(run, command, [*own, *shared])


def takes_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, which gets a session and a connected client.

    A command with a ``timeout`` keeps trying through an outage of Redis until the timeout ends.
    """

    def run(session: Session, **own: Any) -> None:
        with session.client() as client:
            if (timeout := own.get("timeout")) is None:
                return command(session, client, **own)
            with retrying(monotonic() + timeout):
                return command(session, client, **own)

    session, _, *own = inspect.signature(command).parameters.values()
    return takes_session(_with_parameters(run, command, [session, *own]))


@dataclass(frozen=True, slots=True)
class Choice:
    """The calls that a command is about: named by their ids, or else selected by a filter or ``--all``."""

    ids: Sequence[str]
    agent: str | None
    wanted: CallFilter
    dry_run: bool
    yes: bool

    def require_no_preview(self) -> None:
        """Refuse ``--dry-run`` with ids.

        Raises:
            typer.BadParameter: there are both.
        """
        if self.ids and self.dry_run:
            raise typer.BadParameter("--dry-run goes with a filter or --all.")


def takes_filter(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a filter of calls, or some of them, to a command, which gets them as ``wanted``."""
    options = {name: _OF_CALLS[name] for name in names or _OF_CALLS}
    return grouping("wanted", options, lambda **given: CallFilter(**given))  # type: ignore[typeddict-item]


def takes_choice(*names: str, **own: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that choose calls to a command, which gets a :class:`Choice` as ``choice``.

    The filter has ``names``, or all of its fields, and those of the command's ``own``.
    """
    fields = {name: _OF_CALLS[name] for name in names or _OF_CALLS} | own

    def choose(
        ids: list[str] | None, agent: str | None, everything: bool, dry_run: bool, yes: bool, **given: Any
    ) -> Choice:
        is_filtered = everything or any(value is not None for value in (agent, *given.values()))
        if bool(ids) == is_filtered:
            raise typer.BadParameter("give the ids of calls, a filter such as --agent, or --all.")
        return Choice(ids or (), agent, CallFilter(**given), dry_run, yes)  # type: ignore[typeddict-item]

    flags = {"everything": All, "dry_run": DryRun, "yes": Yes}
    return grouping("choice", {"ids": Ids, "agent": OfAgent, **fields, **flags}, choose)


def grouping(
    name: str, options: Mapping[str, Any], group: Callable[..., Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``name`` of a command by options, which ``group`` makes its value of."""
    added = [
        inspect.Parameter(
            one, _OPTION, default=False if get_args(declared)[0] is bool else None, annotation=declared
        )
        for one, declared in options.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any, **own: Any) -> None:
            own[name] = group(**{one: own.pop(one) for one in options})
            command(*given, **own)

        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(command).parameters.values():
            parameters += added if one.name == name else [one]
        return _with_parameters(run, command, parameters)

    return decorate


def require_agent(client: Client, agent: str | None) -> None:
    """Refuse an agent that does not exist; no agent means all.

    Raises:
        AgentNotFoundError: no such agent.
    """
    if agent is not None:
        client.catalog(agent)


def _with_parameters(
    run: Callable[..., None], command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Make ``run`` look like ``command`` to typer, with these parameters."""
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def chosen_bundle(settings: Settings) -> Path:
    """Return the absolute path of the bundle in the settings, or else of the current directory.

    Raises:
        ConfigError: none is set, and the current directory is not a bundle.
    """
    return (settings.bundle or this_bundle()).absolute()


def chosen_agents(bundle: "Bundle", swarm: str | None, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the Swarm's agents that are ``wanted``, each once; by default all.

    Raises:
        AgentNotFoundError: the Swarm has no such agent.
        ConfigError: there is no such Swarm.
    """
    known = bundle.agent_names(swarm)
    for name in wanted:
        if name not in known:
            meant = closest(name, known)
            hint = f"Did you mean {meant!r}? " if meant else ""
            raise AgentNotFoundError(
                f"Swarm {bundle.swarm(swarm).name!r} has no agent {name!r}.",
                suggestion=f"{hint}Its agents are: {', '.join(known)}.",
            )
    return tuple(dict.fromkeys(wanted)) or known


def require_broker(settings: Settings) -> None:
    """Check that Redis answers, is recent enough and no Cluster.

    Commands check this before they start something that would report it less clearly.

    Raises:
        BrokerUnreachableError: it does not answer, or is too old, a Cluster or a Sentinel.
    """
    url = settings.redis_url
    with connect(url) as redis, broker_errors(url):
        server = redis.info("server")
    place, version = hidden_password(url), str(server["redis_version"])
    mode = server.get("server_mode", server.get("redis_mode"))  # Valkey's name, and Redis's
    if mode == "cluster":
        raise BrokerUnreachableError(f"Redis at {place} is part of a Redis Cluster.", suggestion=NO_CLUSTER)
    if mode == "sentinel":
        reason = f"At {place} is a Sentinel, which holds no data."
        raise BrokerUnreachableError(reason, suggestion="Use sentinel://host1,host2,host3/service.")
    if not is_supported(version):
        reason = f"Redis at {place} is too old: it is version {version}."
        raise BrokerUnreachableError(reason, suggestion=f"Use {SERVERS}.")
    with connect(url) as redis, broker_errors(url):
        require_supported(redis, settings)


class Interruption:
    """Notes when this process is asked to stop: by Ctrl-C, SIGTERM or the end of its terminal.

    It is ended ``end_seconds`` later at the latest, whatever Redis does, and sooner when it is asked twice.
    """

    def __init__(self, end_seconds: float = END_SECONDS) -> None:
        self._end_seconds = end_seconds
        self._hard_end = HardEnd()
        #: set by the first signal
        self.asked = threading.Event()
        #: the status that a shell reports for the signal: 130 for Ctrl-C
        self.exit_code = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals within a ``with`` block.

        Raises:
            KeyboardInterrupt: on the second signal, SIGHUP apart: the end of a terminal may send two.
        """
        self._hard_end.start()
        taken = (number for number in _SIGNALS if number != signal.SIGHUP or sighup_ends_process())
        before = {number: signal.signal(number, self._on_signal) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._hard_end.call_off()

    def _on_signal(self, number: int, _frame: Any) -> None:
        if not self.asked.is_set():
            self.exit_code = 128 + number
            self._hard_end.within(self._end_seconds)
            self.asked.set()
        elif number != signal.SIGHUP:
            self._hard_end.within(END_SECONDS)
            raise KeyboardInterrupt
