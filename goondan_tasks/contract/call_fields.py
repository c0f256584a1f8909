"""The fields of a call's wire record, sorted by who needs them, and the checks of records that clients write.

:class:`~goondan_tasks.contract.messages.ToolCall` declares the fields. What writes and reads records by
template derives its parts from here, and a test requires that each field is in one of these lists.
"""

from collections.abc import Mapping
from typing import Any

#: the texts of every call that its result repeats under ``meta``, in the order of their JSON
META_TEXTS = ("agentName", "instanceKey", "turnId", "traceId", "spanId", "correlationId")

#: the texts of every call, in the order of their JSON
TEXTS = ("toolCallId", "toolName", *META_TEXTS)

#: of a producer's call; all but the arguments recur in its result
BARE_FIELDS = frozenset({"v", "args", "callChain", *TEXTS})

#: of a call of a Step, too: the Step, the model's message, and the model's own id if that was not unique
STEP_FIELDS = frozenset({"stepId", "message", "modelCallId"})

#: of a call that an agent makes, too
MADE_FIELDS = frozenset(
    {"waiting", "parentId", "rootId", "parentSpanId", "traceContext", "auth", "origin", "idempotencyKey"}
    | {"followed"}
)

#: when a call may run, how long it may wait, its handler run, and its events be kept
LIMIT_FIELDS = frozenset({"notBefore", "deadline", "timeoutSeconds", "keep"})

#: the fields of calls that are run by plans
PLAN_FIELDS = BARE_FIELDS | STEP_FIELDS | MADE_FIELDS | LIMIT_FIELDS

#: what changes how a call is run: its revision, that it repeats another, that a person has changed it
OTHER_FIELDS = frozenset({"bundleRef", "replayOf", "edited"})


def template_of(names: tuple[str, ...]) -> str:
    """Return the JSON of members as a template: ``"agentName":%s,"instanceKey":%s``."""
    return ",".join(f'"{name}":%s' for name in names)


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


def followed_by(call: Mapping[str, Any], call_id: str) -> str | None:
    """Return the identity of the call or Turn whose stream gets a call's output; ``None`` if none does."""
    if call.get("keep") is not None:
        return call_id
    return call.get("parentId") if call.get("followed") else None
