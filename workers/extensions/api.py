"""What ``register`` is called with: see :class:`goondan_tasks.extension_api.ExtensionApi`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from goondan_tasks.bundle import BoundExtension, Bundle
from goondan_tasks.extension_api import ExtensionInfo, Middleware, Point, State
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import Logger
from workers.extensions.events import Events
from workers.extensions.oauth import ExtensionOAuth
from workers.extensions.pipelines import Pipelines
from workers.extensions.state import ExtensionState, StateStore
from workers.extensions.swarm_bundle import SwarmBundleDesk, SwarmBundleFor, no_swarm_bundle
from workers.extensions.tools import ExtensionTools
from workers.extensions.whose import Whose
from workers.oauth import WorkerOAuth
from workers.tools.dynamic_tools import DynamicTools
from workers.v1.console import ConsoleLogger
from workers.v1.effective_config import extension_resource
from workers.v1.events import AgentEventBus
from workers.v1.extension_api import V1Pipelines, V1WorkerApi
from workers.v1.extension_tools import V1Tools
from workers.v1.means import extension_oauth
from workers.v1.memory import Memory
from workers.v1.swarm_bundle import V1SwarmBundle


@dataclass(frozen=True, slots=True)
class ExtensionPipeline:
    """``api.pipeline``."""

    whose: Whose
    pipelines: Pipelines

    def register(self, point: Point, middleware: Middleware, priority: int = 0) -> None:
        """Put ``middleware`` around the agent's Turns, Steps or tool calls."""
        whose = self.whose
        self.pipelines.register(whose.agent, point, middleware, extension=whose.extension, priority=priority)


@dataclass(frozen=True, slots=True)
class ExtensionEvents:
    """``api.events``."""

    whose: Whose
    events: Events

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; return what ends that."""
        return self.events.on(self.whose.agent, name, listener, extension=self.whose.extension)

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Tell everybody who listens."""
        self.events.emit(self.whose.agent, name, event)


@dataclass(frozen=True, slots=True)
class WorkerExtensionApi:
    """The :class:`~goondan_tasks.extension_api.ExtensionApi` of one extension of one agent."""

    extension: ExtensionInfo
    agent_name: str
    pipeline: ExtensionPipeline
    tools: ExtensionTools
    events: ExtensionEvents
    state: State
    oauth: ExtensionOAuth
    swarm_bundle: SwarmBundleDesk
    logger: Logger


@dataclass(frozen=True, slots=True)
class ExtensionServices:
    """What the extensions of one process share."""

    pipelines: Pipelines
    tools: DynamicTools
    events: Events
    store: StateStore
    #: the names of the tools that an agent declares
    declared: Callable[[str], Mapping[str, Any] | None]
    #: ``None`` if there are no OAuthApps
    oauth: WorkerOAuth | None = None
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle

    def api(self, agent: str, extension: BoundExtension, bundle: Bundle) -> WorkerExtensionApi | V1WorkerApi:
        """Make the api of one extension of one agent."""
        whose = Whose(agent, extension.name, extension.entry_path)
        tools = ExtensionTools(whose, self.tools, self.declared)
        swarm_bundle = SwarmBundleDesk.of_extension(self.swarm_bundle_for, agent)
        if extension.is_v1:
            return V1WorkerApi(
                extension=extension_resource(bundle, extension),
                agent_name=agent,
                pipelines=V1Pipelines(whose, self.pipelines),
                tools=V1Tools(tools, self.pipelines.v1.contexts),
                events=AgentEventBus(agent, extension.name, self.events),
                swarm_bundle=V1SwarmBundle(swarm_bundle),
                oauth=extension_oauth(agent, self.oauth),
                instance=Memory.of(self.store, agent, extension.name),
                logger=ConsoleLogger(_logger(whose)),
            )
        return WorkerExtensionApi(
            extension=ExtensionInfo(extension.name, extension.config),
            agent_name=agent,
            pipeline=ExtensionPipeline(whose, self.pipelines),
            tools=tools,
            events=ExtensionEvents(whose, self.events),
            state=ExtensionState(self.store, agent, extension.name),
            oauth=ExtensionOAuth(agent, self.oauth),
            swarm_bundle=swarm_bundle,
            logger=_logger(whose),
        )

    def unload(self, agents: Collection[str], seconds: float) -> None:
        """Take back what agents' extensions have registered, when they have had so long to tidy up."""
        self.events.unload(agents, seconds)
        for agent in agents:
            self.clear(agent)

    def clear(self, agent: str) -> None:
        """Take back whatever an agent's extensions have registered."""
        self.pipelines.clear(agent)
        self.tools.clear(agent)
        self.events.clear(agent)


def _logger(whose: Whose) -> Logger:
    logger: Logger = structlog.get_logger("goondan.extension", extension=whose.extension, agent=whose.agent)
    return logger
