"""The door ``console``: pages that show what the swarm does, and forms that act, below ``/console``.

Pages are written by the server, read and act without scripts, and load nothing from elsewhere. With scripts
they follow what changes (``looks.py``): the server writes a page again while it is open in a browser, and
sends it if it differs.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.fleet.http_tokens import READ
from goondan_web.answers import PathNotFoundError, RequestError
from goondan_web.callers import caller_of, require
from goondan_web.door import Access, Door, DoorContext
from goondan_web.doors.api.operations import RawRoute
from goondan_web.doors.console import (
    acts,
    approvals,
    audit,
    bulk,
    bundle,
    calls,
    chat,
    fleet,
    instances,
    traces,
    trials,
    usage,
)
from goondan_web.doors.console.asking import Act, Acting, Asking, View
from goondan_web.doors.console.looks import Looks
from goondan_web.doors.console.rendering import PATH, SECURITY, Frame, error_page, page, rendered_main
from goondan_web.event_streams import MEDIA_TYPE, streamed
from goondan_web.event_streams import frame as event
from goondan_web.paths import path_names

#: for how long the count of approvals, which stands on every page, is not counted again
_COUNT_SECONDS = 1.0
#: how long a page is followed before its browser asks again: a token that was revoked follows no longer
FOLLOWED_SECONDS = 600.0
#: the largest form
_MAX_BODY_BYTES = 1_048_576
_MOST_FIELDS = 1_000
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATIC = (
    "console.css",
    "console.js",
    "theme.js",
    "htmx.min.js",
    "hx-sse.min.js",
    "icon.svg",
    "icon-waiting.svg",
)

PAGES: tuple[View, ...] = (
    *fleet.PAGES,
    *calls.PAGES,
    *traces.PAGES,
    *approvals.PAGES,
    *instances.PAGES,
    *trials.PAGES,
    *audit.PAGES,
    *bundle.PAGES,
    *usage.PAGES,
    *bulk.PAGES,
)
ACTS: tuple[Act, ...] = (*acts.ACTS, *approvals.ACTS, *trials.ACTS, *bundle.ACTS, *bulk.ACTS)


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield console_door(context.client, context.settings)


def console_door(client: Client, settings: Settings) -> Door:
    """Make the door."""
    console = Console(client, settings.help_url, asyncio.Event())
    routes = [
        Route(f"{PATH}/static/{{name}}", console.static),
        RawRoute(f"{PATH}/turns/{{id}}/text", console.turn_text, methods=["GET"]),
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


@dataclass(slots=True)
class Console:
    """Answers requests for pages, and forms; errors are pages, too."""

    client: Client
    help_url: str
    #: set when the server ends
    over: asyncio.Event
    looks: Looks = field(default_factory=Looks)
    #: when the calls that wait for an approval were counted, and how many there were
    _approvals: tuple[float, int] = (-math.inf, 0)

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
        return Response(content, 200, headers, _MEDIA_TYPES[PurePath(name).suffix])

    async def turn_text(self, request: Request) -> Response:
        """Send what a running Turn's model writes."""
        try:
            require(request, READ)
            turn_id = path_names(request)["id"]
            await asyncio.to_thread(self.client.record, turn_id)
            return streamed(chat.turn_text(AsyncClient(self.client), turn_id), self.over)
        except GoondanError as error:
            return error_page(error, self.help_url, caller_of(request.scope))

    def reading(self, asked: View) -> Any:
        """Return what answers a page."""

        async def answer(request: Request) -> Response:
            try:
                require(request, asked.scope)
                asking = Asking(
                    self.client, path_names(request), request.query_params, caller_of(request.scope)
                )
                frame = Frame(asking.caller, _address(request), acts.said(request.query_params.get("done")))
                if MEDIA_TYPE in request.headers.get("accept", ""):
                    return streamed(self._changes(asked, asking, frame), self.over)
                wants_json = request.query_params.get("format") == "json"
                return await asyncio.to_thread(self._shown, asked, asking, None if wants_json else frame)
            except GoondanError as error:
                return error_page(error, self.help_url, caller_of(request.scope))

        return answer

    def acting(self, asked: Act) -> Any:
        """Return what answers a form: it leads back to a page that says what was done."""

        async def answer(request: Request) -> Response:
            try:
                require(request, READ)  # who does not see the pages has no use for their forms
                form = await _form(request)
                acting = Acting(self.client, path_names(request), form, caller_of(request.scope))
                address = await asyncio.to_thread(asked.act, acting)
                return RedirectResponse(acting.next_page(address), 303, SECURITY)
            except GoondanError as error:
                return error_page(error, self.help_url, caller_of(request.scope))

        return answer

    def _shown(self, asked: View, asking: Asking, frame: Frame | None) -> Response:
        """Write a page; its data as JSON if there is no frame."""
        shown = asked.show(asking)
        if isinstance(shown, Response):
            return shown
        if frame is None:
            return JSONResponse({name: _json(value) for name, value in shown.data.items()})
        return page(shown, self._counted(frame))

    async def _changes(self, asked: View, asking: Asking, frame: Frame) -> AsyncGenerator[bytes]:
        """Yield what the page shows, each time that it has changed, for some minutes."""
        end = time.monotonic() + FOLLOWED_SECONDS

        def look() -> str | None:
            shown = asked.show(asking)
            return None if isinstance(shown, Response) else rendered_main(shown, self._counted(frame))

        key = (frame.address, asking.caller.name, asking.caller.scopes)
        async with aclosing(self.looks.followed(key, look)) as texts:
            async for text in texts:
                yield event(text.encode())
                if time.monotonic() >= end:
                    return
        # it is gone: a browser whose stream ends asks again at once
        await asyncio.sleep(end - time.monotonic())

    def _counted(self, frame: Frame) -> Frame:
        """Return the frame with the count of approvals."""
        counted_at, count = self._approvals
        if time.monotonic() - counted_at >= _COUNT_SECONDS:
            count = self.client.approval_count()
            self._approvals = time.monotonic(), count
        return replace(frame, approvals=count)


async def _form(request: Request) -> Mapping[str, str]:
    media_type, body = request.headers.get("content-type", ""), await request.body()
    if not body:
        return {}
    if media_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise RequestError("The body must be a form of the console.", status=415)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
        return dict(pairs)
    except ValueError as error:
        raise RequestError(f"The form cannot be read: {error}.") from error


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
