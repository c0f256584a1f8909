"""The system's own tools: every worker runs them for every agent, and they stand in no catalog.

They are called by the client, over the agent's queue and under the call's instance: claimed, fenced and
limited like any call.
"""

import base64
from pathlib import Path

from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.resources import API_VERSION, ToolResource
from goondan_tasks.names import READ_OUTPUT_TOOL, SYSTEM_TOOL
from goondan_tasks.schema import compile_schema
from goondan_tasks.tool_api import JsonObject, ToolContext
from workers.instances.outputs import read_part
from workers.tools.registered_tool import RegisteredTool

_SYSTEM = {
    "apiVersion": API_VERSION,
    "kind": "Tool",
    "metadata": {"name": SYSTEM_TOOL},
    "spec": {
        "entry": Path(__file__).name,
        "exports": [
            {
                "name": "read-output",
                "description": "Read a part of a large output.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string"},
                        "offset": {"type": "integer", "minimum": 0, "maximum": 2**62},
                        "limit": {"type": "integer", "minimum": 1},
                    },
                    "required": ["path"],
                    "additionalProperties": False,
                },
                "idempotent": True,
                "timeoutSeconds": 60,
            }
        ],
    },
}


def system_tools(max_output_bytes: int) -> dict[str, RegisteredTool]:
    """Return the system's tools by full name; none of their outputs exceeds ``max_output_bytes``."""
    # base64 makes four bytes of three, and must leave room for the rest of the answer
    most = max_output_bytes // 2

    def read_output(ctx: ToolContext, input: JsonObject) -> JsonObject:
        limit = min(input.get("limit", most), most)
        data, size = read_part(ctx.workdir, input["path"], offset=input.get("offset", 0), limit=limit)
        return {"data": base64.b64encode(data).decode("ascii"), "size": size}

    [bound] = bound_exports(ToolResource.model_validate(_SYSTEM), Path(__file__).parent)
    arguments = compile_schema(bound.export.parameters)
    return {READ_OUTPUT_TOOL: RegisteredTool(bound, read_output, arguments, is_async=False)}
