"""What nearly every command needs: the settings, a client, and where to write."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.output import Output
from goondan_tasks.client import Client
from goondan_tasks.process_privacy import close_to_other_processes

Own = ParamSpec("Own")

RedisUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The Redis to use; else GOONDAN_REDIS_URL."),
]
BundlePath = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The bundle; else GOONDAN_BUNDLE."),
]
SwarmName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The Swarm of the bundle; else GOONDAN_SWARM."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, logs on stderr.")]


@dataclass(frozen=True, slots=True)
class Session:
    """What one run of a command works with."""

    settings: Settings
    output: Output

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Connect to the broker for the length of a ``with`` block.

        Raises:
            ConfigError: the bundle is not valid.
        """
        bundle = load_bundle(self.settings.bundle) if self.settings.bundle else None
        with Client(self.settings, bundle) as client:
            yield client

    def environment(self, **overrides: object) -> dict[str, str]:
        """Return the environment of a child process that is to have these settings."""
        settings = self.settings
        ours = {"redis_url": settings.redis_url, "broker_url": settings.broker_url or None}
        return Settings.environment(**{**ours, "swarm": settings.swarm, **overrides})


def takes_session(command: Callable[Concatenate[Session, Own], None]) -> Callable[..., None]:
    """Give a command the options that all commands share; it gets them as its first argument."""

    def run(
        *,
        redis_url: RedisUrl = None,
        bundle: BundlePath = None,
        swarm: SwarmName = None,
        as_json: AsJson = False,
        **own: Any,
    ) -> None:
        settings = Settings.load(redis_url=redis_url, bundle=bundle, swarm=swarm)
        if settings.oauth_key is not None:
            close_to_other_processes()
        if redis_url is not None:  # it is meant for the messages too, whatever GOONDAN_BROKER_URL says
            settings = settings.model_copy(update={"broker_url": redis_url})
        command(Session(settings, Output(as_json)), **own)  # type: ignore[call-arg]

    return _with_parameters(run, command)


def _with_parameters(run: Callable[..., None], command: Callable[..., None]) -> Callable[..., None]:
    """Let ``run`` look to typer as if it had the parameters of ``command`` and its own."""
    _, *own = inspect.signature(command).parameters.values()
    *shared, _ = inspect.signature(run).parameters.values()
    parameters = [*own, *shared]
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
