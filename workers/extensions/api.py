"""The argument of an extension's ``register``: see :class:`goondan_tasks.extension_api.ExtensionApi`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from goondan_tasks.authoring.extension_api import ExtensionInfo, Middleware, Point, State
from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.bundle import BoundExtension, Bundle
from goondan_tasks.contract.messages import JsonObject
from workers.extensions.events import EventListeners, running_for
from workers.extensions.pipelines import AgentPipelines
from workers.extensions.services import (
    ExtensionOAuth,
    ExtensionTools,
    Owner,
    SwarmBundleFor,
    SwarmBundleService,
    no_swarm_bundle,
)
from workers.extensions.state import ExtensionState, StateStore
from workers.oauth import WorkerOAuth
from workers.tools.dynamic_tools import DynamicTools


@dataclass(frozen=True, slots=True)
class ExtensionPipeline:
    """``api.pipeline``."""

    owner: Owner
    pipelines: AgentPipelines

    def register(self, point: Point, middleware: Middleware, priority: int = 0) -> None:
        agent, extension = self.owner.agent, self.owner.extension
        self.pipelines.register(agent, point, middleware, extension=extension, priority=priority)


@dataclass(frozen=True, slots=True)
class ExtensionEvents:
    """``api.events``."""

    owner: Owner
    events: EventListeners

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        return self.events.on(self.owner.agent, name, listener, extension=self.owner.extension)

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        self.events.emit(self.owner.agent, name, event)


@dataclass(frozen=True, slots=True)
class WorkerExtensionApi:
    """The :class:`~goondan_tasks.authoring.extension_api.ExtensionApi` of one extension of one agent."""

    extension: ExtensionInfo
    agent_name: str
    pipeline: ExtensionPipeline
    tools: ExtensionTools
    events: ExtensionEvents
    state: State
    oauth: ExtensionOAuth
    swarm_bundle: SwarmBundleService
    logger: Logger


@dataclass(frozen=True, slots=True)
class ExtensionServices:
    """The services that the extensions of one revision share."""

    pipelines: AgentPipelines
    tools: DynamicTools
    events: EventListeners
    store: StateStore
    #: the names of the tools that an agent declares
    declared: Callable[[str], Mapping[str, Any] | None]
    #: makes the api of an extension of the older version
    older_api: "OlderApi"
    #: ``None`` if there are no OAuthApps
    oauth: WorkerOAuth | None = None
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle

    def api(self, agent: str, extension: BoundExtension, bundle: Bundle) -> Any:
        """Make the api of one extension of one agent."""
        owner = Owner(agent, extension.name, extension.entry_path)
        tools = ExtensionTools(owner, self.tools, self.declared)
        swarm_bundle = SwarmBundleService(self.swarm_bundle_for, partial(running_for, agent))
        logger: Logger = structlog.get_logger("goondan.extension", extension=extension.name, agent=agent)
        if extension.is_v1:
            return self.older_api(self, bundle, extension, tools, swarm_bundle, logger)
        return WorkerExtensionApi(
            extension=ExtensionInfo(extension.name, extension.config),
            agent_name=agent,
            pipeline=ExtensionPipeline(owner, self.pipelines),
            tools=tools,
            events=ExtensionEvents(owner, self.events),
            state=ExtensionState(self.store, agent, extension.name),
            oauth=ExtensionOAuth(agent, self.oauth),
            swarm_bundle=swarm_bundle,
            logger=logger,
        )

    def unload(self, agents: Collection[str], seconds: float) -> None:
        """Unload agents' extensions: wait up to ``seconds`` for them, and remove all they registered."""
        self.events.unload(agents, seconds)
        for agent in agents:
            self.pipelines.clear(agent)
            self.tools.clear(agent)
            self.events.clear(agent)


OlderApi = Callable[
    [ExtensionServices, Bundle, BoundExtension, ExtensionTools, SwarmBundleService, Logger], object
]
