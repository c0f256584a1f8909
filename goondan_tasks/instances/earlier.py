"""Finds a workspace that a bundle without a Package had before.

In the first versions it was named after the Swarm, mostly ``default``; then after the folder, whatever the
number of Swarms. Today it changes when a bundle gets a second Swarm or is left with one. Others may have used
the earlier workspace, too, so nothing is moved; messages say where it is and how to keep using it.
"""

from contextlib import suppress
from dataclasses import dataclass

from redis import Redis

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.instances.files import InstanceFiles
from goondan_tasks.instances.table import Instances, encoded, instances_directory


@dataclass(frozen=True, slots=True)
class EarlierWorkspace:
    """An earlier workspace that still exists."""

    name: str
    #: a description of what was found, and where
    found: str
    #: whether the bundle already has instances in its current workspace
    is_past: bool

    @property
    def message(self) -> str:
        """What was found, as a sentence."""
        return (
            f"Workspace {self.name!r}, of an earlier version of the programs or of the bundle, still exists: "
            f"{self.found}."
        )

    @property
    def remedy(self) -> str:
        """How to keep using it."""
        package = f", or name a Package {self.name!r}" if self.name == self.name.lower() else ""
        return (
            f"To keep using it, pass --workspace {self.name} or set GOONDAN_WORKSPACE={self.name} for every "
            f"program{package}. Other Swarms or projects may have used it, too."
        )


def earlier_workspace(
    bundle: Bundle, settings: Settings, redis: Redis | None = None
) -> EarlierWorkspace | None:
    """Return a bundle's earlier workspace if it has files on this machine or records in Redis.

    ``None`` also if the bundle or the settings name the workspace, because it has not changed then.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    if settings.workspace or bundle.package:
        return None
    try:
        swarm = bundle.swarm(settings.swarm).name
    except ConfigError:  # no such Swarm: nothing runs
        return None
    ours = bundle.workspace_name(swarm=settings.swarm)
    # the latest first; of the first two, one is ours
    for name in (folder_workspace(bundle.home), folder_workspace(bundle.home, swarm), swarm):
        if name != ours and (found := _traces(name, settings, redis)):
            is_past = bool(_instances(ours, settings, redis))
            return EarlierWorkspace(name, " and ".join(found), is_past)
    return None


def _traces(workspace: str, settings: Settings, redis: Redis | None) -> list[str]:
    found = _instances(workspace, settings, redis)
    if redis is not None and redis.exists(Keys(settings.namespace).revision(workspace)):
        found.append("the record of its active revision in Redis")
    return found


def _instances(workspace: str, settings: Settings, redis: Redis | None) -> list[str]:
    found = []
    folder = instances_directory(settings.state_root_path, encoded(workspace))
    with suppress(OSError):  # a worker that needs the state root reports this
        if directories := InstanceFiles(settings.state_root_path).directories(encoded(workspace)):
            found.append(f"directories of instances in {folder} ({len(directories)})")
    if redis is not None and (listed := Instances(redis, Keys(settings.namespace)).directories_in(workspace)):
        found.append(f"records of instances in Redis ({len(listed)})")
    return found
