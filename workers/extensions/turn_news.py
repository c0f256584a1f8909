"""``turn.*`` and ``step.*``, for those who listen."""

from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.steps import StepRecord
from workers.extensions.events import Events

TURN_STARTED = "turn.started"
TURN_COMPLETED = "turn.completed"
TURN_FAILED = "turn.failed"
STEP_STARTED = "step.started"
STEP_COMPLETED = "step.completed"


def tell_of_turn(events: Events, name: str, call: ToolCall, error: BaseException | None = None) -> None:
    """Say that the Turn of an agent's entry has begun or ended; of one that failed, why."""
    if not events.has(call.agent_name, name):
        return
    about: JsonObject = {
        "agentName": call.agent_name,
        "instanceKey": call.instance_key,
        "turnId": call.turn_id,
        "traceId": call.trace_id,
    }
    if error is not None:
        code = error.code if isinstance(error, GoondanError) else None
        about |= {"error": type(error).__name__, "code": code}
    events.emit(call.agent_name, name, about)


def tell_of_step(events: Events, name: str, record: StepRecord) -> None:
    """Say that a Step has opened, or has ended well."""
    if not events.has(record.agent_name, name):
        return
    about: JsonObject = {
        "agentName": record.agent_name,
        "instanceKey": record.instance_key,
        "turnId": record.turn_id,
        "traceId": record.trace_id,
        "stepId": record.id,
        "stepIndex": record.index,
    }
    events.emit(record.agent_name, name, about)
