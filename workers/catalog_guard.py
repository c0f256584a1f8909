"""The guard: is the tool in the Tool Catalog of the call's Step (003 §7)? It fails closed."""

from goondan_tasks.bundle import BoundTool
from goondan_tasks.errors import AgentNotFoundError, ToolNotFoundError, ToolNotInCatalogError
from goondan_tasks.messages import ToolCall
from goondan_tasks.steps.model_calls import not_in_catalog
from workers.registry import Registry
from workers.steps import Steps


class CatalogGuard:
    """Admits calls before any middleware sees them; without ``steps`` none of a Step is."""

    def __init__(self, registry: Registry, steps: Steps | None = None) -> None:
        self._registry = registry
        self._steps = steps

    def admit(self, call: ToolCall) -> BoundTool:
        """Return the tool that a call is for; for a call of a Step this may block.

        Raises:
            ToolNotInCatalogError: it may not be called in this Step, or the Step is unknown.
            ToolNotFoundError: it may be called, but nobody has registered it in this worker.
            AgentNotFoundError: the bundle of this worker does not have the agent.
        """
        bound = self._registry.bound(call.agent_name, call.tool_name)
        if bound is None and self._registry.catalog(call.agent_name) is None:
            raise AgentNotFoundError(f"No agent {call.agent_name!r} in this worker's bundle.")
        if call.step_id is not None:
            return self._admit_to_step(call)
        if bound is None:
            raise not_in_catalog(call.tool_name)
        return bound

    def _admit_to_step(self, call: ToolCall) -> BoundTool:
        if self._steps is None:
            raise ToolNotInCatalogError(f"Step {call.step_id!r} is unknown or has expired.")
        if self._steps.require(call).catalog.item(call.tool_name) is None:
            raise not_in_catalog(call.tool_name)
        known = self._registry.known(call.agent_name, call.tool_name)
        if known is None:
            self._steps.run_here(call)
            known = self._registry.known(call.agent_name, call.tool_name)
        if known is None:
            raise ToolNotFoundError(
                f"Tool '{call.tool_name}' is in the Tool Catalog of its Step, "
                "but nobody has registered it in this worker.",
                suggestion="Register it in `register(api)`, or in a step middleware: "
                "those run in every worker that needs them.",
            )
        return known
