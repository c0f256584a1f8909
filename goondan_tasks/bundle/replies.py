"""The rules of ``Connection.spec.reply`` beyond the types of its fields (:mod:`.reply_spec`)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from goondan_tasks.bundle.binding import Scope, bind_tools
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.findings import ConfigCode, Finding
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.reply_spec import ANSWER_ARGUMENT, Reply
from goondan_tasks.contract.wording import hint


def reply_findings(connection: Declaration, agents: Iterable[str], scope: Scope) -> Iterator[Finding]:
    """Yield what is wrong with a Connection's reply for the agents that its events may go to."""
    resource = connection.resource
    reply = resource.spec.reply if isinstance(resource, ConnectionResource) else None
    if reply is None:
        return
    for agent in filter(None, (scope.own.find("Agent", name) for name in dict.fromkeys(agents))):
        binding = bind_tools(agent, scope)
        found = binding.tools.get(reply.tool_name)
        if found is not None:
            yield from _argument_findings(connection, reply, found.export.parameters)
        elif binding.is_complete:
            message = f"{agent.label}, to which events go, declares no tool '{reply.tool_name[:80]}'"
            suggestion = hint(reply.tool_name, binding.tools, "Add its Tool to spec.tools of the Agent.")
            # its Extensions may register more
            tell = connection.warning if agent.value(("spec", "extensions")) else connection.error
            yield tell(("spec", "reply"), message, suggestion, ConfigCode.REF_NOT_FOUND)


def _argument_findings(connection: Declaration, reply: Reply, parameters: Any) -> Iterator[Finding]:
    declared = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(declared, Mapping):
        return
    for name in (ANSWER_ARGUMENT,) if reply.args is None else reply.args:
        if name not in declared:
            message = f"{reply.tool_name} has no parameter '{name[:80]}'"
            suggestion = "Write 'args' with '{{answer}}'." if reply.args is None else hint(name, declared)
            yield connection.error(("spec", "reply"), message, suggestion)
