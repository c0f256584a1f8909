"""The guard: is the tool in the Tool Catalog of the call's Step (003 §7)? It fails closed."""

from goondan_tasks.bundle import BoundTool
from goondan_tasks.errors import AgentNotFoundError, ToolNotInCatalogError
from goondan_tasks.messages import ToolCall
from workers.registry import Registry


class CatalogGuard:
    """Admits calls before any middleware sees them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def admit(self, call: ToolCall) -> BoundTool:
        """Return the tool that a call is for.

        Raises:
            ToolNotInCatalogError: it may not be called in this Step, or the Step is unknown.
            AgentNotFoundError: the bundle of this worker does not have the agent.
        """
        bound = self._registry.bound(call.agent_name, call.tool_name)
        if bound is None and self._registry.catalog(call.agent_name) is None:
            raise AgentNotFoundError(f"No agent {call.agent_name!r} in this worker's bundle.")
        if call.step_id is not None:
            raise ToolNotInCatalogError(f"Step {call.step_id!r} is unknown or has expired.")
        if bound is None:
            raise ToolNotInCatalogError(
                f"Tool '{call.tool_name}' is not available in the current Tool Catalog."
            )
        return bound
