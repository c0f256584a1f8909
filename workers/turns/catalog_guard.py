"""Admits a call only if its tool is in the Tool Catalog of its Step (003 §7)."""

from collections.abc import Collection, Iterable

import structlog

from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.errors import AgentNotFoundError, ToolNotFoundError, ToolNotInCatalogError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.model_messages import not_in_catalog
from goondan_tasks.contract.names import SYSTEM_TOOL
from goondan_tasks.history import StepRecord
from workers.cancellation import Watch
from workers.tools.dynamic_tools import turn_of
from workers.tools.registry import Registry
from workers.turns.steps import Steps, unknown_step

logger = structlog.get_logger(__name__)


class CatalogGuard:
    """Admits calls before any middleware sees them; without ``steps``, only calls outside of Steps."""

    def __init__(self, registry: Registry, steps: Steps | None = None) -> None:
        self._registry = registry
        self._steps = steps

    def admit(self, call: ToolCall, watch: Watch) -> BoundTool:
        """Return the tool of a call; the first call of a Step reads Redis and may block.

        ``watch`` limits the step middlewares that run to register the tool.

        Raises:
            ToolNotInCatalogError: it may not be called in this Step, or the Step is unknown.
            ToolNotFoundError: it may be called, but is not registered in this worker.
            AgentNotFoundError: this worker's bundle does not have the agent.
            MiddlewareError: a step middleware that might have registered it failed.
            ToolTimeoutError: the middlewares took too long, or Redis was away for too long.
        """
        if call.step_id is not None:
            return self._admit_to_step(call, call.step_id, watch)
        bound = self._registry.bound(call.agent_name, call.tool_name, turn_of(call))
        if bound is None:
            self._require_agent(call)
            items = self._registry.items(call.agent_name, turn_of(call))
            raise not_in_catalog(call.tool_name, (item.name for item in items))
        is_system = bound.tool.name == SYSTEM_TOOL
        if self._registry.is_open and not (
            is_system or self._registry.is_offered(call.agent_name, bound.name)
        ):
            _log_exemption(call)
        return bound

    def admits(self, call: JsonObject, bundle_ref: str | None) -> bool:
        """Return whether a Step that is known here lists the tool of a wire record, which has a plan.

        This asks nobody. If it is false, :meth:`admit` decides, and says what is wrong.
        """
        step = None if self._steps is None else self._steps.known(call)
        if step is None or step.record.bundle_ref not in (None, bundle_ref):
            return False
        name = call["toolName"]
        return step.catalog.item(name) is not None and name not in step.record.origins

    def learn(self, calls: Iterable[JsonObject]) -> None:
        """Read the Steps of wire records, those that are not known here in one trip; this blocks.

        Those that cannot be read now are left to :meth:`admit`.
        """
        step_ids = {call["stepId"] for call in calls if "stepId" in call}
        if step_ids and self._steps is not None:
            self._steps.learn(step_ids)

    def note_unregistered(self, call: ToolCall, names: Collection[str]) -> None:
        """See :meth:`Steps.note_unregistered`."""
        if self._steps is not None:
            self._steps.note_unregistered(call, names)

    def _admit_to_step(self, call: ToolCall, step_id: str, watch: Watch) -> BoundTool:
        self._require_agent(call)
        if self._steps is None:
            raise unknown_step(step_id)
        step = self._steps.require(call)
        _require_revision(call, step.record.bundle_ref)
        item = step.catalog.item(call.tool_name)
        if item is None:
            return self._admit_by_policy(call, step.catalog)
        known = self._known(call, step.record)
        if known is None and item.source.type == "config":
            known = self._of_bundle(call, step.record)
        if known is None:
            # an extension's tool takes precedence over the bundle's tool of the same name
            self._steps.run_here(call, watch)
            known = self._known(call, step.record) or self._of_bundle(call, step.record)
        if known is None:
            raise ToolNotFoundError(
                f"Tool '{call.tool_name}' is in the Tool Catalog of its Step, "
                "but it is not registered in this worker, and the bundle does not declare it.",
                suggestion="Declare its Tool, or register it in `register(api)` or in a step middleware: "
                "the middlewares run once more in a worker that lacks it.",
            )
        return known

    def _known(self, call: ToolCall, step: StepRecord) -> BoundTool | None:
        """Return the tool if this worker has it; a tool registered in the Turn has no substitute."""
        turn = turn_of(call)
        is_own = call.tool_name in step.origins
        if is_own and call.tool_name not in self._registry.dynamic.of(call.agent_name, turn):
            return None
        return self._registry.offered(call.agent_name, call.tool_name, turn)

    def _of_bundle(self, call: ToolCall, step: StepRecord) -> BoundTool | None:
        """Return the bundle's tool that a middleware has put into the catalog (001 §12.1)."""
        if call.tool_name in step.origins:
            return None
        return self._registry.of_bundle(call.agent_name, call.tool_name)

    def _admit_by_policy(self, call: ToolCall, catalog: ToolCatalog) -> BoundTool:
        """Admit a tool that is not in the Step's catalog if ``toolCalls.allow`` is ``registry``."""
        registry = self._registry
        known = registry.known(call.agent_name, call.tool_name, turn_of(call)) if registry.is_open else None
        if known is None or known.tool.name == SYSTEM_TOOL:
            raise not_in_catalog(call.tool_name, (item.name for item in catalog))
        _log_exemption(call)
        return known

    def _require_agent(self, call: ToolCall) -> None:
        if self._registry.catalog(call.agent_name) is None:
            raise AgentNotFoundError(f"No agent {call.agent_name!r} in this worker's bundle.")


def _require_revision(call: ToolCall, ref: str | None) -> None:
    """Refuse a call whose revision of the bundle is not that of its Step."""
    if call.bundle_ref is not None and ref is not None and call.bundle_ref != ref:
        raise ToolNotInCatalogError(
            f"Tool '{call.tool_name}' was called in the revision {call.bundle_ref}, "
            f"but its Step was opened in {ref}."
        )


def _log_exemption(call: ToolCall) -> None:
    logger.warning(
        "call.admitted_outside_catalog",
        policy="toolCalls.allow: registry",
        agent=call.agent_name,
        tool=call.tool_name,
        tool_call_id=call.shown_id,
        step_id=call.step_id,
    )
