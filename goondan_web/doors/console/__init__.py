"""The door ``console``: pages that show what the swarm does, and forms that act, below ``/console``.

Pages are written by the server, read and act without scripts, and load nothing from elsewhere. With scripts
they follow what changes: the server writes the page again every :data:`LOOK_SECONDS` while it is open in
a browser, and sends it if it differs.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.fleet.http_tokens import READ
from goondan_web.answers import PathNotFoundError, RequestError
from goondan_web.callers import caller_of, require
from goondan_web.door import Access, Door, DoorContext
from goondan_web.doors.api.operations import RawRoute
from goondan_web.doors.console import acts, audit, calls, fleet, instances, trials, usage
from goondan_web.doors.console.asking import Act, Acting, Asking, View
from goondan_web.doors.console.rendering import PATH, SECURITY, Frame, error_page, page, rendered_main
from goondan_web.event_streams import MEDIA_TYPE, streamed

#: how often an open page is looked at
LOOK_SECONDS = 2.0
_LOOKS_UNCHANGED = 10
#: the largest form
_MAX_BODY_BYTES = 1_048_576
_MOST_FIELDS = 1_000
_STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_STATIC |= {"htmx.min.js": "text/javascript", "hx-sse.min.js": "text/javascript"}

PAGES: tuple[View, ...] = (
    *fleet.PAGES,
    *calls.PAGES,
    *instances.PAGES,
    *trials.PAGES,
    *audit.PAGES,
    *usage.PAGES,
)
ACTS: tuple[Act, ...] = (*acts.ACTS, *trials.ACTS)


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield console_door(context.client, context.settings)


def console_door(client: Client, settings: Settings) -> Door:
    """Make the door."""
    console = Console(client, settings.help_url, asyncio.Event())
    routes = [
        Route(f"{PATH}/static/{{name}}", console.static),
        *(RawRoute(one.path, console.reading(one), methods=["GET"]) for one in PAGES),
        *(RawRoute(one.path, console.acting(one), methods=["POST"]) for one in ACTS),
    ]
    return Door(
        "console",
        PATH,
        routes,
        Access.TOKEN,
        max_body_bytes=_MAX_BODY_BYTES,
        end=console.end,
        error_form=error_page,
        takes_passwords=True,
    )


@dataclass(frozen=True, slots=True)
class Console:
    """Answers requests for pages, and forms; errors are pages, too."""

    client: Client
    help_url: str
    #: set when the server ends
    over: asyncio.Event

    async def end(self) -> None:
        """End the streams of open pages."""
        self.over.set()

    async def static(self, request: Request) -> Response:
        """Send a style, a script or the icon."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise PathNotFoundError
        content = files(__name__).joinpath("static", name).read_bytes()
        headers = {**SECURITY, "Cache-Control": "private, max-age=3600"}
        return Response(content, 200, headers, _STATIC[name])

    def reading(self, asked: View) -> Any:
        """Return what answers a page."""

        async def answer(request: Request) -> Response:
            try:
                require(request, asked.scope)
                asking = Asking(self.client, _names(request), request.query_params, caller_of(request.scope))
                frame = Frame(asking.caller, _address(request), acts.said(request.query_params.get("done")))
                if MEDIA_TYPE in request.headers.get("accept", ""):
                    return streamed(self._changes(asked, asking, frame), self.over)
                shown = await asyncio.to_thread(asked.show, asking)
                if isinstance(shown, Response):
                    return shown
                if request.query_params.get("format") == "json":
                    return JSONResponse({name: _json(value) for name, value in shown.data.items()})
                return page(shown, frame)
            except GoondanError as error:
                return error_page(error, self.help_url, caller_of(request.scope))

        return answer

    def acting(self, asked: Act) -> Any:
        """Return what answers a form: it leads back to a page that says what was done."""

        async def answer(request: Request) -> Response:
            try:
                require(request, READ)  # who does not see the pages has no use for their forms
                form = await _form(request)
                acting = Acting(self.client, _names(request), form, caller_of(request.scope))
                address = await asyncio.to_thread(asked.act, acting)
                return RedirectResponse(acting.next_page(address), 303, SECURITY)
            except GoondanError as error:
                return error_page(error, self.help_url, caller_of(request.scope))

        return answer

    async def _changes(self, asked: View, asking: Asking, frame: Frame) -> AsyncGenerator[bytes]:
        """Yield the page again, each time that it has changed, and now and then as it is.

        A browser leaves out what comes while its user fills in a form.
        """
        before = None
        for look in count():
            try:
                shown = await asyncio.to_thread(asked.show, asking)
                text = None if isinstance(shown, Response) else rendered_main(shown, frame)
            except BrokerUnreachableError:  # the page stays as it is until Redis is back
                text = None
            except GoondanError:  # what it shows is gone: a reload says so
                return
            if text is not None and (text != before or look % _LOOKS_UNCHANGED == 0):
                before = text
                yield b"".join(b"data: %b\n" % line.encode() for line in text.splitlines()) + b"\n"
            await asyncio.sleep(LOOK_SECONDS)


async def _form(request: Request) -> Mapping[str, str]:
    media_type, body = request.headers.get("content-type", ""), await request.body()
    if not body:
        return {}
    if media_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise RequestError("The body must be a form of the console.", status=415)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise RequestError(f"The form cannot be read: {error}.") from error


def _names(request: Request) -> dict[str, str]:
    return {name: unquote(text) for name, text in request.path_params.items()}


def _address(request: Request) -> str:
    """Return the path as it was asked for, names with a slash included, and the query."""
    path, query = request.scope["raw_path"].decode("ascii", "replace"), request.url.query
    return f"{path}?{query}" if query else path


def _json(value: Any) -> Any:
    if isinstance(value, WireModel):
        return value.to_wire()
    if isinstance(value, Mapping):
        return {str(name): _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
