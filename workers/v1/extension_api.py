"""The argument of an older extension's ``register``: :class:`goondan_tasks.v1_api.V1ExtensionApi`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.authoring.v1_api import V1CatalogItem, V1ExtensionApi, V1Handler
from goondan_tasks.bundle import BoundExtension, Bundle
from goondan_tasks.bundle.binding import declared_tool
from goondan_tasks.bundle.resource import V1_API_VERSION
from goondan_tasks.bundle.v1_resources import V1ToolResource
from goondan_tasks.contract.catalog import catalog_item
from workers.extensions.api import ExtensionServices
from workers.extensions.events import running_for
from workers.extensions.pipelines import AgentPipelines
from workers.extensions.services import ExtensionTools, Owner, SwarmBundleService, turn_running
from workers.tools.dynamic_tools import DynamicTool, without_secrets
from workers.tools.registered_tool import ready
from workers.v1.conversions import current_item, v1_item
from workers.v1.event_bus import AgentEventBus
from workers.v1.services import ConsoleLogger, Memory, V1OAuth, V1SwarmBundle
from workers.v1.views import Views, extension_resource


@dataclass(frozen=True, slots=True)
class V1Pipelines:
    """``api.pipelines``."""

    owner: Owner
    pipelines: AgentPipelines

    def mutate(
        self, point: str, function: Callable[[Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        agent, extension = self.owner.agent, self.owner.extension
        self.pipelines.v1.mutate(agent, point, function, extension=extension, priority=priority, name=id)

    def wrap(
        self, point: str, function: Callable[[Any, Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        agent, extension = self.owner.agent, self.owner.extension
        self.pipelines.v1.wrap(agent, point, function, extension=extension, priority=priority, name=id)


@dataclass(frozen=True, slots=True)
class V1Tools:
    """``api.tools``; an object may hold both a tool and its handler (002 §9.1)."""

    own: ExtensionTools
    #: converts tools to the older form
    contexts: Callable[[], Views]

    def register(self, item: Any, handler: V1Handler | None = None) -> None:
        described, own_handler = item, None
        if isinstance(item, V1CatalogItem):
            described = current_item(v1_item(item, self.own.owner.extension))
        elif isinstance(item, Mapping):
            described, own_handler = {**item}, item.get("handler")
            described.pop("handler", None)
        if handler is not None and own_handler is not None:
            raise TypeError("the handler is given twice")
        self.own.add(v1_dynamic_tool(described, handler or own_handler, self.own.owner))

    def unregister(self, name: str) -> bool:
        return self.own.unregister(name)

    def get(self, name: str) -> V1CatalogItem | None:
        return next((item for item in self.list() if item.name == name), None)

    def list(self) -> Sequence[V1CatalogItem]:
        return self.contexts().items(self.own.owner.agent, turn_running())


def v1_dynamic_tool(described: Any, handler: Any, owner: Owner) -> DynamicTool:
    """Make an extension's tool, whose handler is called with a V1ToolContext.

    Raises:
        ValueError: the name or the parameters are not valid.
        TypeError: ``handler`` is not a function of ``(ctx, input)``, or ``described`` is not a description.
    """
    item = without_secrets(catalog_item(described, owner.extension))
    export = {"name": item.name, "description": item.description, "parameters": item.parameters}
    bound = declared_tool(
        f"{owner.extension}.{item.name}",
        export,
        str(owner.entry_path),
        owner.entry_path.parent,
        called=item.name,
        model=V1ToolResource,
        version=V1_API_VERSION,
        runtime="python",
    )
    return DynamicTool(item, ready(bound, handler), owner.extension, turn_running())


def v1_api(
    services: ExtensionServices,
    bundle: Bundle,
    bound: BoundExtension,
    tools: ExtensionTools,
    swarm_bundle: SwarmBundleService,
    logger: Logger,
) -> V1ExtensionApi:
    """Make the API of one older extension of one agent from the services of current extensions."""
    agent = tools.owner.agent
    memory = Memory.of(services.store, agent, bound.name)
    return V1ExtensionApi(
        extension=extension_resource(bundle, bound),
        agent_name=agent,
        pipelines=V1Pipelines(tools.owner, services.pipelines),
        tools=V1Tools(tools, services.pipelines.v1.contexts),
        events=AgentEventBus(agent, bound.name, services.events),
        swarm_bundle=V1SwarmBundle(swarm_bundle),
        oauth=V1OAuth(services.oauth, partial(running_for, agent)),
        state=memory.state,
        instance=memory,
        logger=ConsoleLogger(logger),
        _object=memory,
    )
