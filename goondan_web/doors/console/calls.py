"""Pages about calls: lists of them, one of them, traces and dead letters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from broker_config import serializer
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.history.attempts import time_of
from goondan_tasks.ledger.call_filter import SEARCHED, STATUSES
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.console.asking import Asking, View
from goondan_web.doors.console.rendering import PATH, SECURITY, Shown, at
from goondan_web.doors.console.values import diff_of, editable, shown_json

#: how many rows a list shows, unless its address asks for more
USUAL_ROWS = 50
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
    """Show the latest calls that a filter selects."""
    wanted = {name: asking.chosen(name) for name in ("tool", "instance", "status")}
    limit, agent = asking.number("limit", USUAL_ROWS, SEARCHED), asking.chosen("agent")
    found = asking.client.calls(agent, limit, **wanted)  # type: ignore[arg-type]
    data = {
        "rows": [row_of(record) for record in found],
        "filter": {**wanted, "agent": agent, "limit": limit},
        "statuses": STATUSES,
        "agents": _agents(asking),
        "searched": SEARCHED,
        "keptSeconds": asking.client.settings.result_ttl_seconds,
        "more": min(SEARCHED, limit * 4) if len(found) == limit < SEARCHED else None,
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
    """Show the dead letters in groups of one agent, tool and code."""
    found = asking.client.dead_letters(asking.chosen("agent"), None)
    rows: list[dict[str, Any]] = [
        {
            "agent": agent,
            "tool": tool,
            "code": code,
            "count": len(letters),
            "notIdempotent": sum(letter.is_idempotent is not True for letter in letters),
            "replayable": sum(letter.replayed_by is None for letter in letters),
            "first": time_of(min(map(_end, letters))),
            "last": time_of(max(map(_end, letters))),
            "letters": [row_of(letter) for letter in letters[:USUAL_ROWS]],
        }
        for (agent, tool, code), letters in _by_kind(found).items()
    ]
    rows.sort(key=lambda row: row["last"], reverse=True)
    return Shown("dead_letters.html", "Dead letters", {"groups": rows, "count": len(found)})


def kind_of(record: CallRecord) -> tuple[str, str, str]:
    """Return what failures of one kind have in common: agent, tool and code."""
    return record.call.agent_name, record.call.tool_name, "" if record.error is None else record.error.code


def _by_kind(records: Iterable[CallRecord]) -> Mapping[tuple[str, str, str], list[CallRecord]]:
    kinds: dict[tuple[str, str, str], list[CallRecord]] = defaultdict(list)
    for record in records:
        kinds[kind_of(record)].append(record)
    return kinds


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
    if text in _agents(asking):
        return _to(f"{PATH}/calls?agent={quote(text)}")
    return Shown("search.html", "Search", {"text": text})


def failures(asking: Asking, seconds: float) -> list[dict[str, Any]]:
    """Return the kinds of failures among the latest calls, the most frequent first."""
    found = asking.client.calls(None, SEARCHED, status="error", newer_than=seconds)
    return [
        {"agent": agent, "tool": tool, "code": code, "count": len(records), "last": row_of(records[0])}
        for (agent, tool, code), records in sorted(_by_kind(found).items(), key=lambda kind: -len(kind[1]))
    ]


def _agents(asking: Asking) -> list[str]:
    return sorted(asking.client.agents())


def _to(address: str) -> Response:
    return RedirectResponse(address, 303, SECURITY)


def _end(record: CallRecord) -> int:
    return record.finished_at or record.queued_at


PAGES = (
    View(f"{PATH}/calls", list_calls),
    View(f"{PATH}/calls/{{id}}", show_call),
    View(f"{PATH}/traces", list_traces),
    View(f"{PATH}/dead-letters", list_dead_letters),
    View(f"{PATH}/search", search),
)
