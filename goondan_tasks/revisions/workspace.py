"""Where the revisions of one bundle live: all in one workspace, whatever they say."""

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.errors import ConfigError


def workspace_of(bundle: Bundle, settings: Settings) -> str:
    """Return the workspace of a bundle: ``GOONDAN_WORKSPACE``, else as it says itself (DESIGN §1).

    Raises:
        ConfigError: it has no such Swarm.
    """
    return settings.workspace or bundle.workspace_name(settings.swarm)


def changed_workspace(before: str, after: Bundle, swarm: str | None) -> str | None:
    """Return why a revision cannot take the place of one that lives in the workspace ``before``.

    ``None`` if it can. Its workers would have other workdirs, and ask for revisions at another place, or
    have no Swarm to run.
    """
    try:
        after.swarm(swarm)
        now = after.workspace_name(swarm)
    except ConfigError as error:
        return error.message.removesuffix(".")
    if now == before:
        return None
    return f"the swarm would live in the workspace {now!r} instead of {before!r}"
