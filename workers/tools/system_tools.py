"""Tools that no YAML declares: the system's own, and agents as tools."""

import base64
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.entry import handle_in
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle import BoundTool, Bundle
from goondan_tasks.bundle.binding import declared_tool
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import READ_OUTPUT_TOOL, SYSTEM_TOOL
from goondan_tasks.contract.schema import compile_schema
from workers.handlers import is_async_handler
from workers.instances.outputs import read_part
from workers.tools.entry_files import EntryFiles
from workers.tools.registered_tool import RegisteredTool

_THIS = Path(__file__)


def system_tool(
    name: str,
    handler: Callable[[Any, JsonObject], Any],
    *,
    description: str,
    properties: JsonObject,
    required: Sequence[str],
    timeout_seconds: float,
    only_waits: bool = False,
    reads: Callable[[Any], ScriptCall[Any] | None] | None = None,
    **policy: Any,
) -> RegisteredTool:
    """Make one of the system's own tools, which every worker runs for every agent and no catalog lists.

    The client calls them over the agent's queue and under the call's instance; they are claimed, fenced and
    limited like any call. ``policy`` holds further fields of the export.
    """
    parameters = {"properties": properties, "required": required, "additionalProperties": False}
    export = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", **parameters},
        "idempotent": True,
        "timeoutSeconds": timeout_seconds,
        **policy,
    }
    bound = declared_tool(SYSTEM_TOOL, export, _THIS.name, _THIS.parent)
    arguments = compile_schema(bound.export.parameters)
    return RegisteredTool(bound, handler, arguments, is_async_handler(handler), only_waits, reads)


def system_tools(max_output_bytes: int) -> dict[str, RegisteredTool]:
    """Return the system's tools by full name; their outputs stay below ``max_output_bytes``."""
    # base64 makes four bytes of three; the rest is for the other fields
    most = max_output_bytes // 2

    def read_output(ctx: ToolContext, input: JsonObject) -> JsonObject:
        limit = min(input.get("limit", most), most)
        data, size = read_part(ctx.workdir, input["path"], offset=input.get("offset", 0), limit=limit)
        return {"data": base64.b64encode(data).decode("ascii"), "size": size}

    properties = {
        "path": {"type": "string"},
        "offset": {"type": "integer", "minimum": 0, "maximum": 2**62},
        "limit": {"type": "integer", "minimum": 1},
    }
    tool = system_tool(
        "read-output",
        read_output,
        description="Read a part of a large output.",
        properties=properties,
        required=["path"],
        timeout_seconds=60,
    )
    return {READ_OUTPUT_TOOL: tool}


#: how often a Turn is run whose workers die; a run repeats nothing that an earlier one has done
_THINKING_ATTEMPTS = 50
#: the limit of a thinking agent's Turn if its request has none
_THINKING_SECONDS = 3_600


def bound_agent(bundle: Bundle, agent: str) -> BoundTool | None:
    """Return an Agent as the tool whose calls are its events; ``None`` if workers do not handle them."""
    resource = bundle.agents[agent]
    entry = resource.spec.entry
    if entry is not None:
        export = {"name": agent, "idempotent": resource.spec.idempotent}
        return declared_tool(SYSTEM_TOOL, export, entry, bundle.root)
    if not resource.thinks:
        return None
    limits = {"maxAttempts": _THINKING_ATTEMPTS, "timeoutSeconds": _THINKING_SECONDS}
    return declared_tool(SYSTEM_TOOL, {"name": agent, "idempotent": True, **limits}, _THIS.name, _THIS.parent)


def load_agent(bundle: Bundle, agent: str, files: EntryFiles) -> RegisteredTool:
    """Return an Agent as a tool that is ready to run: its ``handle``, or the Turn loop if it thinks.

    Raises:
        HandoffError: it has neither.
        EntryError: the entry cannot be used.
    """
    bound = bound_agent(bundle, agent)
    if bound is None:
        raise HandoffError(f"Agent {agent!r} has no entry: its events are fetched by Client.receive.")
    if bundle.agents[agent].thinks:
        return RegisteredTool(bound, _think, compile_schema(None), is_async=True)
    handle = files.load(bound.entry_path, handle_in)

    def handle_event(ctx: AgentContext, _: JsonObject) -> Any:
        answer = handle(ctx, ctx.event)
        if inspect.isawaitable(answer):
            return _awaited(ctx, answer)
        ctx.require_thoughts()
        return answer

    return RegisteredTool(bound, handle_event, compile_schema(None), is_async_handler(handle))


async def _awaited(ctx: AgentContext, answer: Awaitable[Any]) -> Any:
    value = await answer
    if not inspect.isawaitable(value):  # as an output, it is an error of its own
        ctx.require_thoughts()
    return value


async def _think(ctx: AgentContext, _: JsonObject) -> Any:
    return await ctx.think()
