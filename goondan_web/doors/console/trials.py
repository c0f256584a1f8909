"""Pages that try an agent or one of its tools: what is sent really runs."""

from collections.abc import Mapping
from typing import Any

from goondan_tasks.contract.errors import ToolInputValidationError, ToolNotInCatalogError
from goondan_tasks.fleet.http_tokens import CALL
from goondan_web.doors.console.asking import Act, Acting, Asking, View
from goondan_web.doors.console.rendering import PATH, Shown, at
from goondan_web.doors.console.values import shown_json, shown_lines

#: how many agents the list shows
_MOST_AGENTS = 200
#: how long the events of what is tried can be followed
_KEEP_SECONDS = 3_600
_EMPTY: Mapping[str, Any] = {
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
}


def choose(asking: Asking) -> Shown:
    """Show the agents, and how many tools each has."""
    agents = [
        {"name": name, "tools": len(record.catalog)}
        for name, record in sorted(asking.client.agents().items())
    ]
    rows, rest = asking.part(agents, _MOST_AGENTS)
    return Shown("try.html", "Try", {"agents": rows, "rest": rest})


def try_agent(asking: Asking) -> Shown:
    """Show a form for a message to an agent, and the agent's tools."""
    agent = asking.path["agent"]
    rows, rest = asking.part(asking.client.catalog(agent))
    data = {
        "agent": agent,
        "key": asking.chosen("key") or "default",
        "tools": [{"name": item["name"], "text": item.get("description", "")} for item in rows],
        "rest": rest,
    }
    return Shown("try_agent.html", f"Try {agent}", data)


def try_tool(asking: Asking) -> Shown:
    """Show a form for the arguments of a tool, with its schema."""
    agent, tool = asking.path["agent"], asking.path["tool"]
    for item in asking.client.catalog(agent):
        if item["name"] == tool:
            schema = item.get("parameters") or {}
            data = {
                "agent": agent,
                "tool": tool,
                "description": item.get("description", ""),
                "schema": shown_json(schema)["text"],
                "args": shown_lines(_example(schema)),
            }
            return Shown("try_tool.html", f"Try {tool}", data)
    raise ToolNotInCatalogError(f"Agent {agent[:200]!r} has no tool {tool[:200]!r}.")


def _example(schema: Any) -> Any:
    """Return arguments of the form that a schema asks for, to be filled in."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    required = schema.get("required")
    names = [name for name in properties if name in required] if isinstance(required, list) else properties
    return {name: _blank(properties[name]) for name in names}


def _blank(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return None
    if "default" in schema:
        return schema["default"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    return _EMPTY.get(str(schema.get("type")))


def call_tool(acting: Acting) -> str:
    """Call a tool with the arguments of the form."""
    agent, tool = acting.path["agent"], acting.path["tool"]
    acting.require(CALL + agent)
    call = acting.client.start_call(agent, tool, acting.json("args", b"{}"), **_fields(acting))
    return at("calls", call.id)


def send_message(acting: Acting) -> str:
    """Send a message to an agent's instance."""
    agent, text = acting.path["agent"], acting.text("text")
    acting.require(CALL + agent)
    if not text:
        raise ToolInputValidationError("The message is empty.")
    return at("calls", acting.client.start_turn(agent, text, **_fields(acting)).id)


def _fields(acting: Acting) -> dict[str, Any]:
    return {
        "request_key": acting.request_key,
        "instance_key": acting.path.get("key") or acting.text("key") or "default",
        "keep": _KEEP_SECONDS,
        "auth": acting.caller.auth,
    }


PAGES = (
    View(f"{PATH}/try", choose),
    View(f"{PATH}/try/{{agent}}", try_agent),
    View(f"{PATH}/try/{{agent}}/{{tool}}", try_tool),
)
ACTS = (
    Act(f"{PATH}/conversations/{{agent}}/{{key}}", send_message),
    Act(f"{PATH}/try/{{agent}}", send_message),
    Act(f"{PATH}/try/{{agent}}/{{tool}}", call_tool),
)
