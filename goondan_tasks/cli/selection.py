"""Which bundle and which of its agents a command is about."""

from collections.abc import Sequence
from pathlib import Path

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.errors import AgentNotFoundError, ConfigError
from goondan_tasks.spelling import closest


def chosen_bundle(settings: Settings) -> Path:
    """Return the bundle's absolute path: the one that is set, else this directory if it is one.

    Raises:
        ConfigError: neither.
    """
    if settings.bundle is not None:
        return settings.bundle.absolute()
    return this_bundle().absolute()


def this_bundle() -> Path:
    """Return this directory, if it is a bundle: nobody's YAML is taken up by chance.

    Raises:
        ConfigError: it is none.
    """
    if any(Path(name).is_file() for name in ("goondan.yaml", "goondan.yml")):
        return Path()
    raise ConfigError(
        "No bundle is set, and there is no goondan.yaml here.",
        suggestion="Set GOONDAN_BUNDLE to the bundle's directory or file, or pass --bundle.",
    )


def chosen_agents(bundle: Bundle, swarm: str | None, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the agents of the Swarm that are ``wanted``, each once; all if none is named.

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
