"""From a path to a bundle, or to everything that is wrong with it.

:func:`load_bundle` is for programs that start: it imports no entry file. :func:`inspect_bundle` is for
people (``goondan validate``): it reports warnings too, and imports the entries in a child process.
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from goondan_tasks.bundle.base_package import base_package_root
from goondan_tasks.bundle.binding import BoundTool, bind_tools, bound_exports
from goondan_tasks.bundle.bundle import Bundle
from goondan_tasks.bundle.entry_check import entry_findings
from goondan_tasks.bundle.extension_binding import bind_extensions
from goondan_tasks.bundle.findings import BundleError, Finding, in_order
from goondan_tasks.bundle.inventory import Inventory, read_inventory
from goondan_tasks.bundle.resources import (
    AgentResource,
    ConnectionResource,
    ConnectorResource,
    ExtensionResource,
    ModelResource,
    OAuthAppResource,
    PackageResource,
    Resource,
    SwarmResource,
    ToolResource,
)
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.bundle.validation import bundle_findings

_Kind = TypeVar("_Kind", bound=Resource)


def load_bundle(path: Path) -> Bundle:
    """Load the bundle in a directory or a single file.

    Raises:
        BundleError: something is wrong with it; all findings are in the error.
    """
    bundle, findings = inspect_bundle(path, import_entries=False)
    if bundle is None:
        raise BundleError(findings)
    return bundle


def inspect_bundle(
    path: Path,
    *,
    import_entries: bool = True,
    import_seconds: float | None = None,
    base_root: Path | None = None,
) -> tuple[Bundle | None, list[Finding]]:
    """Return the bundle, if it has no errors, and every finding, sorted by file and line.

    ``import_seconds`` limits what the entries may take together. ``base_root`` is the folder of the built-in
    package, found by itself if not given.
    """
    inventory, findings = read_inventory(path)
    scope = Scope(inventory, base_root or base_package_root())
    findings += bundle_findings(scope)
    if import_entries:
        findings += entry_findings(inventory, seconds=import_seconds)
    findings = in_order(findings)
    if any(finding.level == "error" for finding in findings):
        return None, findings
    return _bundle(scope), findings


def _bundle(scope: Scope) -> Bundle:
    own = scope.own
    bound = {agent.name: MappingProxyType(bind_tools(agent, scope).tools) for agent in own.of_kind("Agent")}
    extensions = {
        agent.name: tuple(bind_extensions(agent, scope).extensions.values()) for agent in own.of_kind("Agent")
    }
    packages = _of(own, PackageResource)
    return Bundle(
        root=own.root,
        package=next(iter(packages.values()), None),
        tools=_of(own, ToolResource),
        agents=_of(own, AgentResource),
        swarms=_of(own, SwarmResource),
        extensions=_of(own, ExtensionResource),
        models=_of(own, ModelResource),
        connectors=_of(own, ConnectorResource),
        connections=_of(own, ConnectionResource),
        oauth_apps=_of(own, OAuthAppResource),
        _bound=MappingProxyType(bound),
        _registry=_registry(own, bound),
        _extensions=MappingProxyType(extensions),
    )


def _registry(own: Inventory, bound: Mapping[str, Mapping[str, BoundTool]]) -> Mapping[str, BoundTool]:
    """Lay the bundle's own tools, as they were declared, over those that agents use."""
    used = chain.from_iterable(tools.values() for tools in bound.values())
    declared = chain.from_iterable(bound_exports(tool, own.root) for tool in _of(own, ToolResource).values())
    return MappingProxyType({tool.name: tool for tool in (*used, *declared)})


def _of(inventory: Inventory, model: type[_Kind]) -> Mapping[str, _Kind]:
    resources = (declaration.resource for declaration in inventory.declarations)
    return MappingProxyType({item.name: item for item in resources if isinstance(item, model)})
