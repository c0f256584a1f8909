"""What the wire record of a Step's call has besides the fields of a bare call."""

from collections.abc import Mapping
from typing import Any

#: the Step, the model's message, and the model's own id of the call if that was not unique
STEP_FIELDS = {"stepId", "message", "modelCallId"}


def shown_id(call: Mapping[str, Any]) -> str:
    """Return the id of a call that the model, the handler and the result show (DESIGN §6)."""
    shown: str = call.get("modelCallId") or call["toolCallId"]
    return shown


def is_sound(call: Mapping[str, Any]) -> bool:
    """Return whether the :data:`STEP_FIELDS` of a record have the right types, as a client writes them.

    A client has checked that the message holds the call. False for a record that has to be checked as a
    whole, because it may have been written by another program.
    """
    if type(call.get("stepId", "")) is not str or type(call.get("modelCallId", "")) is not str:
        return False
    message = call.get("message")
    return message is None or (isinstance(message, dict) and _holds(message, shown_id(call)))


def _holds(message: Mapping[str, Any], call_id: str) -> bool:
    data, source = message.get("data"), message.get("source")
    return (
        type(message.get("id")) is str
        and type(message.get("createdAt")) is str
        and isinstance(message.get("metadata", {}), dict)
        and isinstance(source, dict)
        and source.get("type") == "assistant"
        and isinstance(data, dict)
        and data.get("role") == "assistant"
        and isinstance(data.get("content"), list)
        and any(isinstance(part, dict) and part.get("toolCallId") == call_id for part in data["content"])
    )
