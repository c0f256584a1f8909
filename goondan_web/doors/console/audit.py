"""The page about the audit."""

from urllib.parse import urlencode

from goondan_tasks.client import AuditEntry
from goondan_tasks.fleet.audit import MOST_ENTRIES
from goondan_tasks.fleet.http_tokens import ADMIN
from goondan_web.doors.console.asking import Asking, View
from goondan_web.doors.console.calls import USUAL_ROWS
from goondan_web.doors.console.rendering import PATH, Shown, at

_FILTERS = ("by", "target", "act", "door")
#: the spans of time that a filter offers, in seconds
_SPANS = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400}


def show_audit(asking: Asking) -> Shown:
    """Show who did what, the latest first."""
    wanted = {name: asking.chosen(name) for name in _FILTERS}
    span, before = asking.chosen("span"), asking.chosen("before")
    newer_than = _SPANS.get(span or "")
    found = asking.client.audit(USUAL_ROWS + 1, before=before, newer_than=newer_than, **wanted)
    rows, chosen = found[:USUAL_ROWS], {**wanted, "span": span}
    given = {name: value for name, value in chosen.items() if value}
    older = urlencode({**given, "before": rows[-1].id}) if len(found) > len(rows) else None
    data = {
        "rows": [{"act": row, "address": address_of(row)} for row in rows],
        "filter": chosen,
        "spans": list(_SPANS),
        "most": MOST_ENTRIES,
        "older": older,
        "before": before,
    }
    return Shown("audit.html", "Audit", data)


def address_of(entry: AuditEntry) -> str | None:
    """Return the page about what an act was done to."""
    match entry.kind:
        case "call" | "deadLetter":
            return at("calls", entry.target)
        case "instance" if entry.agent is not None:
            return at("conversations", entry.agent, entry.target)
        case "calls" if entry.agent is not None:
            return f"{at('calls')}?{urlencode({'agent': entry.agent})}"
        case "calls":
            return at("calls")
        case "deadLetters":
            return at("dead-letters")
        case "agent" | "tool":
            return at("queues")
        case "worker" | "workers":
            return at("workers")
        case "schedule":
            return at("schedules")
        case "revision" | "grant":
            return at("bundle")
    return None


PAGES = (View(f"{PATH}/audit", show_audit, ADMIN),)
