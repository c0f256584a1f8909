"""Pages about calls: lists of them, one of them, traces and dead letters."""

from typing import Any

from starlette.responses import RedirectResponse, Response

from broker_config import serializer
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.history.failures import FailureGroup, Failures
from goondan_tasks.ledger.call_filter import STATUSES, selects_failures
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.console.asking import USUAL_ROWS, Asking, View
from goondan_web.doors.console.filters import (
    FILTER_FIELDS,
    TIMES,
    ChosenFilter,
    chosen_filter,
    link,
    literal,
)
from goondan_web.doors.console.rendering import PATH, SECURITY, Shown, at
from goondan_web.doors.console.values import diff_of, editable, shown_json

#: how many kinds of failures the overview shows
_KINDS = 10
#: the shortest beginning of an id that is looked for
_SHORTEST_ID = 6


def row_of(record: CallRecord) -> JsonObject:
    """Return what lists show of a call; without its arguments, which may be large."""
    begun, ended, error = record.claimed_at, record.finished_at, record.error
    return {
        **record.to_wire(),
        "state": record.state,
        "seconds": None if begun is None or ended is None else (ended - begun) / 1_000,
        "message": None if error is None else error.message,
    }


def list_calls(asking: Asking) -> Shown:
    """Show a page of the calls that a filter selects."""
    chosen = chosen_filter(asking)
    limit = asking.number("limit", USUAL_ROWS, USUAL_ROWS)
    page = asking.client.call_page(chosen.agent, limit, cursor=asking.chosen("cursor"), **chosen.wanted)
    following = {**chosen.fields, "limit": str(limit), "cursor": page.cursor}
    data = {
        "rows": [row_of(record) for record in page.calls],
        "filter": {**dict.fromkeys(FILTER_FIELDS), **chosen.fields},
        "statuses": STATUSES,
        "times": TIMES,
        "agents": asking.agents(),
        "searched": page.searched,
        "total": page.total,
        "onlyFailures": selects_failures(chosen.wanted),
        "keptSeconds": asking.client.settings.result_ttl_seconds,
        "first": link("calls", **chosen.fields) if asking.chosen("cursor") else None,
        "next": link("calls", **following) if page.cursor else None,
        "bulk": link("bulk", "cancel", **chosen.fields),
    }
    return Shown("calls.html", "Calls", data)


def show_call(asking: Asking) -> Shown:
    """Show all that is known of a call."""
    client, call_id = asking.client, asking.path["id"]
    record = client.record(call_id)
    story = client.describe(call_id)
    args, output = shown_json(record.call.args), None
    if story.output is not None and record.result is not None:
        output = shown_json(serializer.decode(record.result).get("output"))
    data = {
        "story": story,
        "args": args,
        "form": editable(record.call.args) if story.awaits == "approval" else None,
        "edited": diff_of(record.call),
        "output": output,
        "isEvent": is_event(record.call),
    }
    return Shown("call.html", f"{story.tool} of {story.agent}", data)


def list_traces(asking: Asking) -> Shown:
    """Show the latest traces."""
    return Shown("traces.html", "Traces", {"traces": asking.client.traces(USUAL_ROWS)})


def list_dead_letters(asking: Asking) -> Shown:
    """Show the dead letters by the kinds of their failures, or a page of those that a filter selects."""
    chosen = chosen_filter(asking)
    found = asking.client.failures(
        chosen.agent,
        only_dead=True,
        newer_than=chosen.wanted.get("newer_than"),
    )
    is_list = any(name in chosen.fields for name in FILTER_FIELDS if name not in {"agent", "since"})
    data = {
        "groups": [] if is_list else [_group(one, chosen) for one in found.groups[:USUAL_ROWS]],
        "hidden": 0 if is_list else max(0, len(found.groups) - USUAL_ROWS),
        "counted": found.counted,
        "count": found.total,
        "filter": {**dict.fromkeys(FILTER_FIELDS), **chosen.fields},
        "times": TIMES,
        "agents": asking.agents(),
        "rows": None,
        "replay": link("bulk", "replay", **chosen.fields),
        "drop": link("bulk", "drop", **chosen.fields),
    }
    if is_list:
        cursor = asking.chosen("cursor")
        page = asking.client.call_page(
            chosen.agent, USUAL_ROWS, cursor=cursor, only_letters=True, **chosen.wanted
        )
        following = {**chosen.fields, "cursor": page.cursor}
        data |= {
            "rows": [row_of(one) for one in page.calls],
            "next": link("dead-letters", **following) if page.cursor else None,
        }
    return Shown("dead_letters.html", "Dead letters", data)


def _only_agent(group: FailureGroup) -> str | None:
    """Return the agent of a kind of failures, if there is only one."""
    return group.agents[0] if len(group.agents) == 1 else None


def _group(group: FailureGroup, chosen: ChosenFilter) -> dict[str, Any]:
    kind = {
        **chosen.fields,
        "tool": literal(group.tool),
        "code": group.code,
        "fingerprint": group.fingerprint,
    }
    return {
        **group.to_wire(),
        "list": link("dead-letters", **{**kind, "agent": _only_agent(group) or chosen.agent}),
        "kind": link("dead-letters", fingerprint=group.fingerprint),
        "replay": link("bulk", "replay", **kind),
        "drop": link("bulk", "drop", **kind),
    }


def search(asking: Asking) -> Shown | Response:
    """Lead to the one call, trace or agent that has a name, or show what begins with it."""
    text = (asking.chosen("q") or "")[:200]
    if not text:
        return _to(at("calls"))
    client = asking.client
    if len(text) >= _SHORTEST_ID and len(found := client.ids_beginning_with(text)) == 1:
        return _to(at("calls", found[0]))
    for name, address in ((client.record, at("calls", text)), (client.trace, at("traces", text))):
        try:
            name(text)
        except CallNotFoundError:
            continue
        return _to(address)
    if text in asking.agents():
        return _to(link("calls", agent=text))
    return Shown("search.html", "Search", {"text": text})


def failures(asking: Asking, seconds: int) -> tuple[list[dict[str, Any]], Failures]:
    """Return the kinds of the failures of the last seconds, the most frequent first, each with its list."""
    found = asking.client.failures(newer_than=float(seconds))
    groups = [
        {
            **one.to_wire(),
            "list": link(
                "calls",
                status="error",
                tool=literal(one.tool),
                code=one.code,
                fingerprint=one.fingerprint,
                since=str(seconds),
                agent=_only_agent(one),
            ),
            "kind": link("calls", status="error", fingerprint=one.fingerprint, since=str(seconds)),
        }
        for one in found.groups[:_KINDS]
    ]
    return groups, found


def _to(address: str) -> Response:
    return RedirectResponse(address, 303, SECURITY)


PAGES = (
    View(f"{PATH}/calls", list_calls),
    View(f"{PATH}/calls/{{id}}", show_call),
    View(f"{PATH}/traces", list_traces),
    View(f"{PATH}/dead-letters", list_dead_letters),
    View(f"{PATH}/search", search),
)
