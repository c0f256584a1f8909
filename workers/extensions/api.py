"""What ``register`` is called with: see :class:`goondan_tasks.extension_api.ExtensionApi`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from goondan_tasks.bundle import BoundExtension, CatalogItem
from goondan_tasks.extension_api import ExtensionInfo, Middleware, Point, State
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import Logger, ToolHandler
from workers.dynamic_tools import DynamicTools, dynamic_tool
from workers.extensions.events import Events
from workers.extensions.oauth import ExtensionOAuth
from workers.extensions.pipelines import Pipelines
from workers.extensions.running import running
from workers.extensions.state import ExtensionState, StateStore
from workers.oauth import WorkerOAuth


@dataclass(frozen=True, slots=True)
class Whose:
    """An extension of an agent."""

    agent: str
    extension: str
    entry_path: Path


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
class ExtensionTools:
    """``api.tools``."""

    whose: Whose
    tools: DynamicTools
    #: the names that the Agent declares, which no extension can take
    declared: Callable[[str], Mapping[str, Any] | None]

    def register(
        self,
        item: CatalogItem | Mapping[str, Any],
        handler: ToolHandler,
        *,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a tool.

        Raises:
            ValueError: it is not valid, or the Agent declares a tool of that name.
            TypeError: ``handler`` is no function of ``(ctx, input)``.
        """
        whose, call = self.whose, running.get()
        tool = dynamic_tool(
            item,
            handler,
            policy,
            extension=whose.extension,
            entry_path=whose.entry_path,
            turn=None if call is None else (call.instance_key, call.turn_id),
        )
        if tool.item.name in (self.declared(whose.agent) or ()):
            raise ValueError(
                f"{tool.item.name!r} is a tool that the Agent declares in spec.tools: register a toolCall "
                "middleware to change what it does, or choose another name"
            )
        self.tools.add(whose.agent, tool)

    def unregister(self, name: str) -> bool:
        """Take a tool away again; say whether there was one."""
        return self.tools.remove(self.whose.agent, name)


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

    def api(self, agent: str, extension: BoundExtension) -> WorkerExtensionApi:
        """Make the api of one extension of one agent."""
        whose = Whose(agent, extension.name, extension.entry_path)
        return WorkerExtensionApi(
            extension=ExtensionInfo(extension.name, extension.config),
            agent_name=agent,
            pipeline=ExtensionPipeline(whose, self.pipelines),
            tools=ExtensionTools(whose, self.tools, self.declared),
            events=ExtensionEvents(whose, self.events),
            state=ExtensionState(self.store, agent, extension.name),
            oauth=ExtensionOAuth(agent, self.oauth),
            logger=structlog.get_logger("goondan.extension", extension=extension.name, agent=agent),
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
