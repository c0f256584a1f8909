"""How the console's pages are written: templates, what a page may load, and texts that come from anywhere."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import uuid4

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.wording import counted, duration_text, printable
from goondan_web.answers import error_answer, status_of
from goondan_web.callers import NOBODY, Caller
from goondan_web.doors.console.markdown import markdown
from goondan_web.paths import path_part

PATH = "/console"
#: a page loads what this server has, and nothing runs that stands in the page itself
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: a browser asks its user for a name, which is not looked at, and a password, which is the token
_ASKS = {"WWW-Authenticate": 'Basic realm="Goondan console: the password is a token", charset="UTF-8"'}
_NOTHING = "\N{EN DASH}"
#: between these stands what changes as time goes by; texts of others cannot contain them
_LIVE, _STILL = "<!--live-->", "<!--/live-->"
#: how many characters of a text a page shows
SHOWN_CHARACTERS = 32_000
_ID = re.compile(r"\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
#: the pages of the rail
RAIL = (
    ("Overview", PATH),
    ("Conversations", f"{PATH}/conversations"),
    ("Calls", f"{PATH}/calls"),
    ("Traces", f"{PATH}/traces"),
    ("Approvals", f"{PATH}/approvals"),
    ("Dead letters", f"{PATH}/dead-letters"),
    ("Queues", f"{PATH}/queues"),
    ("Workers", f"{PATH}/workers"),
    ("Usage", f"{PATH}/usage"),
    ("Schedules", f"{PATH}/schedules"),
    ("Connections", f"{PATH}/connections"),
    ("Try", f"{PATH}/try"),
    ("Bundle", f"{PATH}/bundle"),
    ("Audit", f"{PATH}/audit"),
)
#: the icon of each state, which its word always follows
_ICONS = {
    "scheduled": "◷",
    "queued": "◷",
    "waiting": "‖",
    "pending": "‖",
    "paused": "‖",
    "running": "●",
    "starting": "●",
    "ok": "✓",
    "idle": "✓",
    "error": "✕",
    "dead": "✕",
    "crashLoopBackOff": "✕",
    "stopped": "✕",
    "none": "✕",
    "lost": "?",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows: its template, its title, and the values that the template names."""

    template: str
    title: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around every page."""

    caller: Caller
    #: the path of the request, with its query
    address: str
    #: what an action has done, in words
    done: str | None = None
    #: how many calls wait for an approval
    approvals: int = 0


def rendered(shown: Shown, frame: Frame) -> str:
    """Return a whole page."""
    return _environment().get_template(shown.template).render(_values(shown, frame))


def rendered_main(shown: Shown, frame: Frame) -> str:
    """Return what a page shows, without what stands around it: the part that changes as time goes by."""
    return rendered(shown, frame).partition(_LIVE)[2].partition(_STILL)[0]


def rendered_part(template: str, data: Mapping[str, Any]) -> str:
    """Return a part of a page that comes by itself."""
    return _environment().get_template(template).render(data)


def page(shown: Shown, frame: Frame, status: int = 200) -> Response:
    """Answer with a page."""
    return HTMLResponse(rendered(shown, frame), status, SECURITY)


def error_page(error: GoondanError, help_url: str, caller: Caller = NOBODY) -> Response:
    """Answer with an error as people read it, and its status."""
    described, status = describe(error, help_url=help_url, default=type(error)), status_of(error)
    shown = Shown("error.html", described.code, {"error": described, "status": status})
    answer = page(shown, Frame(caller, PATH), status)
    for name, value in error_answer(error, help_url).headers.items():
        if name not in {"content-length", "content-type"}:
            answer.headers[name] = value
    if status == 401:
        answer.headers.update(_ASKS)
    return answer


def at(*parts: str) -> str:
    """Return an address of the console: ``at("calls", call_id)``."""
    return "/".join((PATH, *(path_part(part) for part in parts)))


def _values(shown: Shown, frame: Frame) -> dict[str, Any]:
    return {**shown.data, "title": shown.title, "frame": frame, "caller": frame.caller}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("goondan_web.doors.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalized,
    )
    environment.globals.update(at=at, once=lambda: uuid4().hex, RAIL=RAIL, ICONS=_ICONS, PATH=PATH)
    environment.filters.update(
        coded=_coded,
        counted=counted,
        cut=_cut,
        duration=_duration,
        field=_field,
        fit=_fit,
        linked=_linked,
        markdown=markdown,
        moment=_moment,
        rate=_rate,
        short=_short,
    )
    return environment


def _finalized(value: Any) -> Any:
    """Show control characters and marks that turn the direction of text as escapes; ``None`` as a dash."""
    if value is None:
        return _NOTHING
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _field(text: str | None) -> Markup:
    """Return the value of a field, which a form sends back as it is, with what pages show as escapes."""
    return Markup("").join(
        escape(char) if _stays(char) else Markup("&#{};").format(ord(char)) for char in text or ""
    )


def _stays(char: str) -> bool:
    # by their numbers HTML means others than U+0080 to U+009F
    return char.isprintable() or "\x80" <= char <= "\x9f"


def _fit(text: str, most: int) -> Markup:
    """Return a text between tags, where quotes may stay, with so many bytes at most; a longer one is cut."""
    shown, mark = html.escape(printable(text), quote=False), ""
    while (size := len(shown.encode())) > most:
        text, mark = text[: len(text) * most // size], "…"
        shown = html.escape(printable(text), quote=False)
    return Markup(shown + mark)  # noqa: S704 - it is escaped here


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration_text(seconds)


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _moment(time: str | None) -> Any:
    """Show an ISO 8601 time; a script says how long ago that is, and the time in the viewer's zone."""
    if time is None:
        return _NOTHING
    return Markup('<time datetime="{}">{} UTC</time>').format(time, time[:19].replace("T", " "))


def _linked(text: str) -> Markup:
    """Make links of the ids of calls in a text."""
    parts = _ID.split(printable(text))
    links = (
        Markup('<a class="id" href="{}" title="{}">{}</a>').format(at("calls", part), part, _short(part))
        if number % 2
        else escape(part)
        for number, part in enumerate(parts)
    )
    return Markup("").join(links)


def _coded(text: str) -> Markup:
    """Show what stands between backticks as code."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # one of them has no other
        return escape(printable(text))
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def _short(text: str) -> str:
    """Shorten an id in its middle."""
    return text if len(text) <= 13 else f"{text[:8]}…{text[-4:]}"


def _cut(text: str, most: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
