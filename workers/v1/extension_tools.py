"""``api.tools`` of the older version: tools that come with their handlers in one object (002 §9.1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle.resources import V1_API_VERSION
from goondan_tasks.bundle.v1_resources import V1ToolResource
from goondan_tasks.v1_api import V1CatalogItem, V1Handler
from workers.extensions.tools import ExtensionTools, turn_running
from workers.extensions.whose import Whose
from workers.tools.dynamic_tools import DynamicTool, catalog_item, declared_tool, ready, without_secrets
from workers.v1.items import todays_item, v1_item
from workers.v1.pipeline_contexts import V1Contexts

_HANDLER = "handler"


@dataclass(frozen=True, slots=True)
class V1Tools:
    """See :class:`goondan_tasks.v1_api.Tools`."""

    own: ExtensionTools
    #: shows tools as the older version does
    contexts: Callable[[], V1Contexts]

    def register(self, item: Any, handler: V1Handler | None = None) -> None:
        """Add a tool.

        Raises:
            ValueError: it is not valid, or the Agent declares a tool of that name.
            TypeError: the handler is no function of ``(ctx, input)``, or is given twice.
        """
        described, own_handler = _parted(item, self.own.whose)
        if handler is not None and own_handler is not None:
            raise TypeError("the handler is given twice")
        self.own.add(v1_dynamic_tool(described, handler or own_handler, self.own.whose))

    def unregister(self, name: str) -> bool:
        """Take a tool away again; say whether there was one."""
        return self.own.unregister(name)

    def get(self, name: str) -> V1CatalogItem | None:
        """Return a tool that the agent has in this worker."""
        return next((item for item in self.list() if item.name == name), None)

    def list(self) -> Sequence[V1CatalogItem]:
        """Return the tools that the agent has in this worker, the declared ones first."""
        return self.contexts().items(self.own.whose.agent, turn_running())


def v1_dynamic_tool(described: Any, handler: Any, whose: Whose) -> DynamicTool:
    """Make a tool of what an extension registers; its handler is called with a V1ToolContext.

    Raises:
        ValueError: the name or the parameters are not valid.
        TypeError: ``handler`` is no function of ``(ctx, input)``; or it is no description.
    """
    item = without_secrets(catalog_item(described, whose.extension))
    export = {"name": item.name, "description": item.description, "parameters": item.parameters}
    resource = {
        "apiVersion": V1_API_VERSION,
        "kind": "Tool",
        "metadata": {"name": f"{whose.extension}.{item.name}"},
        "spec": {"runtime": "python", "entry": str(whose.entry_path), "exports": [export]},
    }
    bound = declared_tool(V1ToolResource, resource, item.name, whose.entry_path)
    return DynamicTool(item, ready(bound, handler), whose.extension, turn_running())


def _parted(item: Any, whose: Whose) -> tuple[Any, Any]:
    """Return how a tool is described, and its handler."""
    if isinstance(item, V1CatalogItem):
        return todays_item(v1_item(item, whose.extension)), None
    if not isinstance(item, Mapping):
        return item, None
    return {name: value for name, value in item.items() if name != _HANDLER}, item.get(_HANDLER)
