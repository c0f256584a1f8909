"""The arguments of a model's calls: those that cannot be used stay text, with the reason."""

import json
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import json_faults


def read_arguments(given: Any) -> tuple[Any, str]:
    """Return the arguments of a call, and why they cannot be used; such arguments stay text."""
    value = given
    try:
        for _ in range(2):  # some models write JSON text that holds JSON text
            if isinstance(value, str):
                value = serializer.decode(value) if value.strip() else {}
        if value is None:
            return {}, ""
        reason = "" if isinstance(value, dict) else "they are not an object"
        reason = reason or "; ".join(json_faults(value))
    except serializer.NotJsonError as error:
        reason = str(error)
    if not reason:
        return value, ""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return text, f"The arguments of this call are not a JSON object: {reason[:500]}."


def sendable_arguments(args: Any) -> JsonObject:
    """Return the arguments of a call in a conversation; text that cannot be used goes into a property.

    The library would read such text, and fail on a number that no float holds.
    """
    value, fault = read_arguments(args)
    return {"INVALID_JSON": value} if fault else value
