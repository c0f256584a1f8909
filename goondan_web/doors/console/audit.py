"""The page about the audit."""

from goondan_tasks.client import AuditEntry
from goondan_tasks.fleet.audit import MOST_ENTRIES
from goondan_tasks.fleet.http_tokens import ADMIN
from goondan_web.doors.console.asking import USUAL_ROWS, Asking, View
from goondan_web.doors.console.filters import TIMES, link
from goondan_web.doors.console.rendering import PATH, Shown, at

_FILTERS = ("by", "target", "act", "door")
#: the times that a filter offers, by their seconds
_TIMES = {**TIMES, "604800": "week"}


def show_audit(asking: Asking) -> Shown:
    """Show who did what, the latest first."""
    wanted = {name: asking.chosen(name) for name in _FILTERS}
    since, before = asking.chosen("since"), asking.chosen("before")
    newer_than = None if since is None else float(asking.number("since", 0, 10**9))
    found = asking.client.audit(USUAL_ROWS + 1, before=before, newer_than=newer_than, **wanted)
    rows, chosen = found[:USUAL_ROWS], {**wanted, "since": since}
    data = {
        "rows": [{"act": row, "address": address_of(row)} for row in rows],
        "filter": chosen,
        "times": _TIMES,
        "most": MOST_ENTRIES,
        "older": link("audit", **chosen, before=rows[-1].id) if len(found) > len(rows) else None,
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
        case "calls":
            return link("calls", agent=entry.agent)
        case "deadLetters":
            return link("dead-letters", agent=entry.agent)
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
