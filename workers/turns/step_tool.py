"""``goondan__step``: the system's tool by which a producer has a Step opened, over the agent's queue."""

from collections.abc import Callable
from pathlib import Path

from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.resources import API_VERSION, ToolResource
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.names import SYSTEM_TOOL
from goondan_tasks.schema import compile_schema
from goondan_tasks.steps import StepRecord
from workers.tools.registered_tool import RegisteredTool
from workers.turns.held_onion import MOST_SECONDS

_SYSTEM = {
    "apiVersion": API_VERSION,
    "kind": "Tool",
    "metadata": {"name": SYSTEM_TOOL},
    "spec": {
        "entry": Path(__file__).name,
        "exports": [
            {
                "name": "step",
                "description": "Open a Step of a Turn whose brain is a producer.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "v": {"const": 1},
                        "index": {"type": "integer", "minimum": 0, "maximum": 2**31},
                        "message": {"type": "object"},
                        "previousStepId": {"type": "string"},
                    },
                    "required": ["index"],
                    "additionalProperties": False,
                },
                "idempotent": True,
                "timeoutSeconds": 3 * MOST_SECONDS,
            }
        ],
    },
}


def step_tool(open_step: Callable[[ToolCall], StepRecord]) -> RegisteredTool:
    """Return the tool, given what opens a Step for a call."""

    def step(call: ToolCall, _: JsonObject) -> JsonObject:
        """Name the Step; its catalog, which may be large, stands in Redis for whoever wants it."""
        record = open_step(call)
        return {"stepId": record.id, "index": record.index}

    [bound] = bound_exports(ToolResource.model_validate(_SYSTEM), Path(__file__).parent)
    return RegisteredTool(bound, step, compile_schema(bound.export.parameters), is_async=False)
