"""A bundle that can be used: every resource valid, every reference resolved, nothing changes any more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from goondan_tasks.bundle.base_package import base_package_root
from goondan_tasks.bundle.binding import BoundTool
from goondan_tasks.bundle.extension_binding import BoundExtension
from goondan_tasks.bundle.findings import ConfigCode
from goondan_tasks.bundle.refs import Ref
from goondan_tasks.bundle.resources import (
    AgentResource,
    ConnectionResource,
    ConnectorResource,
    ExtensionResource,
    Metadata,
    ModelResource,
    OAuthAppResource,
    PackageResource,
    SwarmResource,
    SwarmSpec,
    ToolResource,
)
from goondan_tasks.errors import AgentNotFoundError, ConfigError
from goondan_tasks.spelling import hint

DEFAULT_SWARM = "default"


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
        if name is not None:
            return self._named_swarm(name)
        if len(self.swarms) == 1:
            return next(iter(self.swarms.values()))
        return self.swarms.get(DEFAULT_SWARM) or self._implicit_swarm()

    def agent_names(self, swarm: str | None = None) -> tuple[str, ...]:
        """Return the names of a Swarm's agents, chosen as :meth:`swarm` does.

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        return tuple(dict.fromkeys(ref.name for ref in self.swarm(swarm).spec.agents))

    def workspace_name(self, swarm: str | None = None) -> str:
        """Return where the Swarm lives unless ``GOONDAN_WORKSPACE`` says otherwise (DESIGN §1).

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        return self.package.name if self.package else self.swarm(swarm).name

    def bound_tools(self, agent: str) -> Mapping[str, BoundTool]:
        """Return what an agent may call, by full name in declared order (001 §12.1 rule 2).

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        if agent not in self._bound:
            raise self._no_agent(agent)
        return self._bound[agent]

    def bound_extensions(self, agent: str) -> tuple[BoundExtension, ...]:
        """Return an agent's extensions in the order in which it declares them.

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        if agent not in self._extensions:
            raise self._no_agent(agent)
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

    def _no_agent(self, agent: str) -> AgentNotFoundError:
        suggestion = hint(agent, self.agents, "Declare an Agent.")
        return AgentNotFoundError(f"The bundle has no agent '{agent}'.", suggestion=suggestion)

    def _named_swarm(self, name: str) -> SwarmResource:
        if name in self.swarms:
            return self.swarms[name]
        raise ConfigError(
            f"The bundle has no Swarm '{name}'.",
            code=ConfigCode.REF_NOT_FOUND,
            suggestion=hint(name, self.swarms, "Leave the Swarm out, or declare it."),
        )

    def _implicit_swarm(self) -> SwarmResource:
        if not self.agents:
            raise ConfigError("The bundle has no agents.", suggestion="Declare an Agent.")
        refs = tuple(Ref("Agent", name) for name in self.agents)
        return SwarmResource.model_construct(
            api_version="goondan.ai/v1",
            kind="Swarm",
            metadata=Metadata(name=DEFAULT_SWARM),
            spec=SwarmSpec.model_construct(entry_agent=refs[0], agents=refs),
        )
