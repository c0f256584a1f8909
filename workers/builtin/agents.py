"""Built-in tool ``agents``: the methods of ``ctx.runtime`` as tools."""

from typing import Any

from goondan_tasks.tool_api import AgentRuntime, JsonObject, ToolContext, ToolError, ToolHandler


async def request(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Send a request to an agent, and return its answer unless ``async`` is set."""
    options = {name: input.get(name) for name in ("timeoutMs", "async", "delay", "notBefore")}
    asked = await _runtime(ctx).request(input["target"], _event(input, "agent.request"), options)
    return {
        "target": asked.target,
        "eventId": asked.event_id,
        "correlationId": asked.correlation_id,
        "accepted": asked.accepted,
        "async": asked.is_async,
        "response": asked.response,
    }


async def send(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Send an event to an agent without waiting for an answer."""
    options = {name: input.get(name) for name in ("delay", "notBefore")}
    sent = await _runtime(ctx).send(input["target"], _event(input, "agent.send"), options)
    return {"target": sent.target, "eventId": sent.event_id, "accepted": sent.accepted}


async def spawn(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Prepare an instance."""
    options = {"instanceKey": input.get("instanceKey"), "cwd": input.get("cwd")}
    spawned = await _runtime(ctx).spawn(input["target"], options)
    return {
        "target": spawned.target,
        "instanceKey": spawned.instance_key,
        "spawned": spawned.spawned,
        "cwd": spawned.cwd,
    }


async def list_instances(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """List the instances that the caller has spawned, or all those of the swarm."""
    listed = await _runtime(ctx).list({"includeAll": input.get("includeAll", False)})
    agents = [{"cwd": None, **info.to_wire()} for info in listed.agents]
    return {"count": len(agents), "agents": agents}


async def catalog(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """List the agents of the swarm."""
    swarm = await _runtime(ctx).catalog()
    return {
        **swarm.to_wire(),
        "availableCount": len(swarm.available_agents),
        "callableCount": len(swarm.callable_agents),
    }


def _runtime(ctx: ToolContext) -> AgentRuntime:
    if ctx.runtime is None:
        raise ToolError(
            "Agent runtime interface is not available in ToolContext.runtime",
            suggestion="Let a worker run the tool, without `isolation: process`.",
        )
    return ctx.runtime


def _event(input: JsonObject, default_type: str) -> JsonObject:
    event: dict[str, Any] = {"input": input["input"], "type": input.get("eventType", default_type)}
    return event | {name: input[name] for name in ("instanceKey", "metadata") if name in input}


handlers: dict[str, ToolHandler] = {
    "request": request,
    "send": send,
    "spawn": spawn,
    "list": list_instances,
    "catalog": catalog,
}
