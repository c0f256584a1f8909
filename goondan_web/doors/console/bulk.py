"""Acts on all calls that a filter selects: a page that says what would be done, and the form that does it."""

from typing import Any

from goondan_tasks.client.bulk import BulkAct
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.fleet.http_tokens import ADMIN
from goondan_web.doors.console.asking import Act, Acting, Asking, View
from goondan_web.doors.console.filters import chosen_filter, link
from goondan_web.doors.console.rendering import PATH, Shown

#: how long one form works; what is left then waits for the next one
_SECONDS = 10.0
#: how many tools the page names
_NAMED = 20
#: what is done, and to what
_WORDS: dict[BulkAct, tuple[str, str]] = {
    "replay": ("Replay", "dead letters"),
    "drop": ("Drop", "dead letters"),
    "cancel": ("Cancel", "calls"),
}


def preview(asking: Asking) -> Shown:
    """Say what an act would do with all calls that a filter selects; after a part of it, what it has done."""
    act, chosen = _act(asking), chosen_filter(asking)
    asking.require(ADMIN)
    between = _moments(asking) if asking.text("until") else None
    found = asking.client.act_on_all(act, chosen.agent, between=between, dry_run=True, **chosen.wanted)
    verb, noun = _WORDS[act]
    data: dict[str, Any] = {
        "act": act,
        "verb": verb,
        "noun": noun,
        "found": found,
        "tools": found.tools[:_NAMED],
        "hidden": max(0, len(found.tools) - _NAMED),
        "filter": chosen.fields,
        "back": link("calls" if act == "cancel" else "dead-letters", **chosen.fields),
        "did": asking.number("did", 0, 10**12, least=0) if asking.text("did") else None,
        "failed": asking.number("failed", 0, 10**12, least=0),
        "live": False,
    }
    return Shown("bulk.html", f"{verb} {noun}", data)


def carry_out(acting: Acting) -> str:
    """Do it with those that were there when the page was shown, for some seconds; lead back to the page."""
    acting.require(ADMIN)
    act, chosen = _act(acting), chosen_filter(acting)
    between = earliest, latest = _moments(acting)
    did, failed = (acting.number(name, 0, 10**12, least=0) for name in ("did", "failed"))
    done = acting.client.act_on_all(act, chosen.agent, between=between, seconds=_SECONDS, **chosen.wanted)
    return link(
        "bulk",
        act,
        **chosen.fields,
        **{"from": str(earliest), "until": str(latest)},
        did=str(did + done.done),
        failed=str(failed + done.failed),
    )


def _moments(asked: Asking) -> tuple[int, int]:
    """Return the moments of the page that was shown: what came later is left alone."""
    return asked.number("from", 0, 10**14, least=0), asked.number("until", 0, 10**14, least=0)


def _act(asked: Asking) -> BulkAct:
    name = asked.path["act"]
    for act in _WORDS:
        if act == name:
            return act
    raise ToolInputValidationError(f"There is no act {name[:100]!r}: it is replay, drop or cancel.")


PAGES = (View(f"{PATH}/bulk/{{act}}", preview),)
ACTS = (Act(f"{PATH}/bulk/{{act}}", carry_out),)
