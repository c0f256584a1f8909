"""What a worker begins with: the bundle in its folder, or the active revision if that one is not valid."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog
from redis.exceptions import RedisError

from broker_config.connections import connect
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, BundleError, load_bundle
from goondan_tasks.bundle.inventory import read_inventory
from goondan_tasks.errors import GoondanError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import Checkout
from goondan_tasks.revisions.followed import FollowedBundle

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """A bundle that a process can begin with."""

    bundle: Bundle
    #: the ref and the checkout of the active revision; ``None`` for the folder itself
    ref: str | None = None
    checkout: Checkout | None = None

    @classmethod
    def of(cls, path: Path, settings: Settings) -> Self:
        """Return the bundle at ``path``; if it is not valid, the revision that workers say is active.

        Whoever asks closes the checkout.

        Raises:
            BundleError: it is not valid, and no other revision is known, or can be had.
        """
        try:
            return cls(load_bundle(path))
        except BundleError as error:
            instead = cls._active(path, settings)
            if instead is None:
                raise
            logger.warning("bundle.folder_not_valid", runs=instead.ref, reason=error.message)
            return instead

    @classmethod
    def _active(cls, path: Path, settings: Settings) -> Self | None:
        workspace = settings.workspace or _declared_workspace(path, settings.swarm)
        if workspace is None:
            return None
        try:
            with connect(settings.redis_url, name="goondan-begin") as redis:
                state = ActiveRevision(redis, Keys(settings.namespace), workspace).state()
            if state is None:
                return None
            bundle, checkout = FollowedBundle.of(path, settings).load(state.active)
        except (RedisError, ValueError, GoondanError) as error:
            logger.warning("bundle.no_active_revision", workspace=workspace, reason=str(error))
            return None
        return cls(bundle, state.active, checkout)


def standing_bundle(path: Path, settings: Settings) -> Bundle:
    """Return what :meth:`Standing.of` does, for who reads no file of it."""
    standing = Standing.of(path, settings)
    if standing.checkout is not None:
        standing.checkout.close()
    return standing.bundle


def _declared_workspace(path: Path, swarm: str | None) -> str | None:
    """Return the workspace that a bundle names, whatever else is wrong with it; as ``workspace_name``."""
    inventory, _ = read_inventory(path)
    packages, swarms = inventory.of_kind("Package"), inventory.of_kind("Swarm")
    if packages:
        return packages[0].name or None
    return swarm or (swarms[0].name if len(swarms) == 1 else None) or None
