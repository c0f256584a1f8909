"""The workspace that a bundle's Swarm lives in (DESIGN §1)."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from goondan_tasks.bundle.inventory import read_inventory
from goondan_tasks.bundle.resources import DEFAULT_SWARM
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.names import folder_workspace

if TYPE_CHECKING:
    from goondan_tasks.bundle.bundle import Bundle


def swarm_in_workspace(swarms: Collection[str], swarm: str | None) -> str | None:
    """Return the Swarm whose name a folder's workspace has; ``None`` unless there are several.

    Without ``swarm`` it is ``default``, which :meth:`Bundle.swarm` chooses among several.
    """
    return (swarm or DEFAULT_SWARM) if len(swarms) > 1 else None


def declared_workspace(path: Path, swarm: str | None) -> str | None:
    """Return a Swarm's own workspace even if the bundle is invalid; ``None`` if nothing can be read."""
    inventory, _ = read_inventory(path)
    if not inventory.declarations:
        return None
    names = [package.name for package in inventory.of_kind("Package") if package.name]
    swarms = {found.name for found in inventory.of_kind("Swarm") if found.name}
    return names[0] if names else folder_workspace(inventory.root, swarm_in_workspace(swarms, swarm))


def changed_workspace(before: "Bundle", after: "Bundle", swarm: str | None) -> str | None:
    """Return why a revision cannot replace another one; ``None`` if it can.

    In another workspace its workers would use other workdirs, and look for revisions elsewhere.
    """
    try:
        after.swarm(swarm)
    except ConfigError as error:
        return error.message.removesuffix(".")
    then, now = (_described_workspace(bundle, swarm) for bundle in (before, after))
    return None if now == then else f"the swarm would live in {now} instead of {then}"


def _described_workspace(bundle: "Bundle", swarm: str | None) -> str:
    """Describe a workspace without its folder, because a checked bundle is in a temporary one."""
    if bundle.package:
        return f"workspace {bundle.package.name!r}"
    added = swarm_in_workspace(bundle.swarms, swarm)
    return "its folder's workspace" if added is None else f"a workspace of Swarm {added!r} alone"
