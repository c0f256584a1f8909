"""A bundle that can be used, with valid resources and resolved references, and how it is loaded.

:func:`load_bundle` is for programs that start: it imports no entry file. :func:`inspect_bundle` is for people
(``goondan validate``): it reports warnings too, and imports the entries in child processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from goondan_tasks.bundle.binding import (
    BoundExtension,
    BoundTool,
    Scope,
    base_package_root,
    bind_extensions,
    bind_tools,
    bound_exports,
)
from goondan_tasks.bundle.entries import entry_findings
from goondan_tasks.bundle.fields import Ref
from goondan_tasks.bundle.findings import BundleError, ConfigCode, Finding, in_order
from goondan_tasks.bundle.inventory import read_inventory
from goondan_tasks.bundle.resources import (
    DEFAULT_SWARM,
    AgentResource,
    ConnectionResource,
    ConnectorResource,
    ExtensionResource,
    Metadata,
    ModelResource,
    OAuthAppResource,
    PackageResource,
    Resource,
    SwarmResource,
    SwarmSpec,
    ToolResource,
)
from goondan_tasks.bundle.validation import bundle_findings
from goondan_tasks.errors import AgentNotFoundError, ConfigError
from goondan_tasks.wording import hint

_Kind = TypeVar("_Kind", bound=Resource)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The resources of a bundle by name, in order of files and documents."""

    #: the folder that the paths in resources start from; absolute
    root: Path
    package: PackageResource | None
    tools: Mapping[str, ToolResource]
    agents: Mapping[str, AgentResource]
    swarms: Mapping[str, SwarmResource]
    extensions: Mapping[str, ExtensionResource]
    models: Mapping[str, ModelResource]
    connectors: Mapping[str, ConnectorResource]
    connections: Mapping[str, ConnectionResource]
    oauth_apps: Mapping[str, OAuthAppResource]
    _bound: Mapping[str, Mapping[str, BoundTool]] = field(repr=False)
    _registry: Mapping[str, BoundTool] = field(repr=False)
    _extensions: Mapping[str, tuple[BoundExtension, ...]] = field(repr=False)

    def swarm(self, name: str | None = None) -> SwarmResource:
        """Return a Swarm: the one called ``name``, else the only one, else ``default``, else all agents.

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        if name is not None and name not in self.swarms:
            suggestion = hint(name, self.swarms, "Leave the Swarm out, or declare it.")
            message = f"The bundle has no Swarm '{name}'."
            raise ConfigError(message, code=ConfigCode.REF_NOT_FOUND, suggestion=suggestion)
        if name is None and len(self.swarms) == 1:
            return next(iter(self.swarms.values()))
        named = self.swarms.get(DEFAULT_SWARM if name is None else name)
        if named is not None:
            return named
        if not self.agents:
            raise ConfigError("The bundle has no agents.", suggestion="Declare an Agent.")
        refs = tuple(Ref("Agent", agent) for agent in self.agents)
        return SwarmResource.model_construct(
            api_version="goondan.ai/v1",
            kind="Swarm",
            metadata=Metadata(name=DEFAULT_SWARM),
            spec=SwarmSpec.model_construct(entry_agent=refs[0], agents=refs),
        )

    def agent_names(self, swarm: str | None = None) -> tuple[str, ...]:
        """Return the names of a Swarm's agents, chosen as :meth:`swarm` does.

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        return tuple(dict.fromkeys(ref.name for ref in self.swarm(swarm).spec.agents))

    def workspace_name(self, swarm: str | None = None) -> str:
        """Return the Swarm's workspace unless ``GOONDAN_WORKSPACE`` names one (DESIGN §1).

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        return self.package.name if self.package else self.swarm(swarm).name

    def bound_tools(self, agent: str) -> Mapping[str, BoundTool]:
        """Return the tools an agent may call, by full name in declared order (001 §12.1 rule 2).

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        self._check_agent(agent)
        return self._bound[agent]

    def bound_extensions(self, agent: str) -> tuple[BoundExtension, ...]:
        """Return an agent's extensions in the order in which it declares them.

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        self._check_agent(agent)
        return self._extensions[agent]

    def agents_with_commands(self) -> tuple[str, ...]:
        """Return the agents that may run any command: those with the built-in ``bash``."""
        root = base_package_root()
        return tuple(
            agent
            for agent, tools in self._bound.items()
            if root and any(tool.entry_path == root / "bash.py" for tool in tools.values())
        )

    def all_tools(self) -> Mapping[str, BoundTool]:
        """Return the registry: every tool of the bundle, and the built-in ones that its agents use."""
        return self._registry

    def _check_agent(self, agent: str) -> None:
        if agent not in self._bound:
            suggestion = hint(agent, self.agents, "Declare an Agent.")
            raise AgentNotFoundError(f"The bundle has no agent '{agent}'.", suggestion=suggestion)


def load_bundle(path: Path) -> Bundle:
    """Load the bundle in a directory or a single file.

    Raises:
        BundleError: the bundle has errors; all findings are in the exception.
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

    ``import_seconds`` limits how long all entries together may take. ``base_root`` is the folder of the
    built-in package, by default the installed one.
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
    agents = own.of_kind("Agent")
    bound = {agent.name: MappingProxyType(bind_tools(agent, scope).tools) for agent in agents}
    extensions = {agent.name: tuple(bind_extensions(agent, scope)[0].values()) for agent in agents}

    def of(model: type[_Kind]) -> Mapping[str, _Kind]:
        resources = (declaration.resource for declaration in own.declarations)
        return MappingProxyType({item.name: item for item in resources if isinstance(item, model)})

    # the bundle's own tools, as declared, take precedence over those that agents changed
    registry = {tool.name: tool for tools in bound.values() for tool in tools.values()}
    registry |= {
        tool.name: tool for one in of(ToolResource).values() for tool in bound_exports(one, own.root)
    }
    return Bundle(
        root=own.root,
        package=next(iter(of(PackageResource).values()), None),
        tools=of(ToolResource),
        agents=of(AgentResource),
        swarms=of(SwarmResource),
        extensions=of(ExtensionResource),
        models=of(ModelResource),
        connectors=of(ConnectorResource),
        connections=of(ConnectionResource),
        oauth_apps=of(OAuthAppResource),
        _bound=MappingProxyType(bound),
        _registry=MappingProxyType(registry),
        _extensions=MappingProxyType(extensions),
    )
