"""Calls that wait for a person: the page that lists them, and decisions, with other arguments if need be."""

from collections import Counter
from collections.abc import Sequence

from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.redaction import hidden_by_place, hidden_in_log
from goondan_tasks.fleet.http_tokens import APPROVE
from goondan_tasks.history.attempts import time_of
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.console.asking import Act, Acting, Asking, View, after
from goondan_web.doors.console.calls import row_of
from goondan_web.doors.console.rendering import PATH, Shown
from goondan_web.doors.console.values import editable, restored, shown_json

#: how many calls one form decides about
MOST_AT_ONCE = 100
#: how many calls the page shows
_ROWS = 10


def list_approvals(asking: Asking) -> Shown:
    """Show the calls that wait for a person and that a filter selects, the oldest first."""
    agent, tool = asking.chosen("agent"), asking.chosen("tool")
    found = asking.client.approvals(agent, tool=tool)
    shown, rest = asking.part(found, _ROWS)
    data = {
        "rows": [_row(record) for record in shown],
        "rest": rest,
        "count": len(found),
        "filter": {"agent": agent, "tool": tool},
        "agents": asking.agents(),
        "all": _preview(found[:MOST_AT_ONCE]),
    }
    return Shown("approvals.html", "Approvals", data)


def _row(record: CallRecord) -> JsonObject:
    return {
        **row_of(record),
        "since": time_of(record.suspended_at),
        "said": _said(record.call),
        "idempotent": record.is_idempotent,
        "args": shown_json(record.call.args),
        "form": editable(record.call.args),
    }


def _said(call: ToolCall) -> str:
    """Return what the model has said before the call, in the same message."""
    content = None if call.message is None else call.message.data.get("content")
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text")
    return hidden_by_place("\n".join(str(hidden_in_log(text)) for text in texts if text))


def _preview(records: Sequence[CallRecord]) -> JsonObject:
    """Return what a decision about all of these calls is about."""
    kinds = Counter((record.call.tool_name, record.call.agent_name) for record in records)
    return {
        "ids": " ".join(record.id for record in records),
        "count": len(records),
        "notIdempotent": sum(record.is_idempotent is not True for record in records),
        "kinds": [{"tool": tool, "agent": agent, "count": n} for (tool, agent), n in kinds.most_common()],
    }


def approve(acting: Acting) -> str:
    """Approve a call, in the caller's name; with the arguments of the form, if it has any."""
    acting.require(APPROVE)
    call_id, args = acting.path["id"], None
    if "args" in acting.fields:  # an empty field is no approval of the arguments that were asked for
        args = restored(acting.json("args", b""), acting.client.record(call_id).call.args)
        if not isinstance(args, dict):
            raise ToolInputValidationError("The arguments must be an object.")
    acting.client.approve(call_id, acting.caller.person, args)
    return after("approved", "approvals") if args is None else after("approved", "calls", call_id)


def deny(acting: Acting) -> str:
    """Deny a call, with a reason that the agent reads."""
    acting.require(APPROVE)
    acting.client.deny(acting.path["id"], acting.text("reason"), acting.caller.person)
    return after("denied", "approvals")


def approve_all(acting: Acting) -> str:
    """Approve the calls that the form names, of those that still wait."""
    acting.require(APPROVE)
    acting.client.approve_many(_ids(acting), acting.caller.person)
    return after("approved-all", "approvals")


def deny_all(acting: Acting) -> str:
    """Deny the calls that the form names, of those that still wait."""
    acting.require(APPROVE)
    acting.client.deny_many(_ids(acting), acting.text("reason"), acting.caller.person)
    return after("denied-all", "approvals")


def _ids(acting: Acting) -> Sequence[str]:
    ids = acting.text("ids").split()
    if len(ids) > MOST_AT_ONCE:
        raise ToolInputValidationError(f"A form decides about {MOST_AT_ONCE} calls at most.")
    return ids


PAGES = (View(f"{PATH}/approvals", list_approvals),)
ACTS = (
    Act(f"{PATH}/approvals/approve", approve_all),
    Act(f"{PATH}/approvals/deny", deny_all),
    Act(f"{PATH}/approvals/{{id}}/approve", approve),
    Act(f"{PATH}/approvals/{{id}}/deny", deny),
)
