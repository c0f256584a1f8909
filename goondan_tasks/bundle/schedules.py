"""The Schedules of a bundle: their rules beyond the types of fields, and what is kept of them in Redis."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from goondan_tasks.bundle.binding import Scope, bind_tools
from goondan_tasks.bundle.findings import ConfigCode, Finding
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.resources import ScheduleResource
from goondan_tasks.contract.schedules import Schedule, slot_text
from goondan_tasks.contract.schema import SchemaError, compile_schema
from goondan_tasks.contract.wording import hint

if TYPE_CHECKING:
    from goondan_tasks.bundle.bundle import Bundle


def schedules_of(bundle: "Bundle", swarm: str | None, workspace: str | None) -> tuple[str, list[Schedule]]:
    """Return the workspace of a Swarm, and the schedules of its agents as they are kept in Redis.

    Raises:
        ConfigError: the bundle has no such swarm.
    """
    owner, agents = bundle.workspace_name(workspace, swarm), bundle.agent_names(swarm)
    records = [resource.record(owner) for resource in bundle.schedules.values()]
    return owner, [one for one in records if one.agent in agents]


def tool_findings(schedule: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield what is wrong with the tool that a Schedule calls, as far as the bundle declares it."""
    resource = schedule.resource
    if not isinstance(resource, ScheduleResource) or resource.spec.tool is None:
        return
    agent, tool = scope.own.find("Agent", resource.spec.agent_ref.name), resource.spec.tool
    if agent is None:
        return
    binding = bind_tools(agent, scope)
    found = binding.tools.get(tool)
    if found is None:
        if binding.is_complete:
            message = f"the {agent.label} declares no tool '{tool[:80]}'"
            suggestion = hint(tool, binding.tools, "Add its Tool to spec.tools of the Agent.")
            # its Extensions may register more
            tell = schedule.warning if agent.value(("spec", "extensions")) else schedule.error
            yield tell(("spec", "tool"), message, suggestion, ConfigCode.REF_NOT_FOUND)
        return
    try:
        schema = compile_schema(found.export.parameters)
    except SchemaError:  # it has a finding of its own
        return
    for fault in schema.faults(resource.record("").call(slot_text(0), 0).args):
        yield schedule.error(("spec", "args"), fault, f"Correct the arguments of {tool}.")
