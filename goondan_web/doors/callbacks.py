"""The door ``callbacks``: the completion of calls by ``POST /callbacks/{id}/{token}`` (DESIGN §6)."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from time import monotonic
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import CallNotFoundError, ToolInputValidationError
from goondan_tasks.contract.failure import ErrorLike
from goondan_tasks.contract.names import public_paths
from goondan_web.answers import RequestError, require_json
from goondan_web.door import Access, Door, DoorContext

PATH = "/callbacks/{call_id}/{token}"
#: a JSON escape may take six bytes for a character of three
INFLATION = 2
#: the size of a body without its output
FRAME_BYTES = 4_096

#: how many wrong tokens an address may show for a call in WINDOW_SECONDS; how many such pairs are remembered
MOST_ATTEMPTS = 20
WINDOW_SECONDS = 60.0
MOST_WINDOWS = 4_096
#: in characters; the ids of calls are shorter
LONGEST_ID = 200

#: a client's ``complete_with_token``; takes the call's id, the token, the output and the error
Complete = Callable[[str, str, Any, ErrorLike | None], Awaitable[None]]


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    if context.settings.public_url is None:
        context.note("GOONDAN_PUBLIC_URL is not set here; workers need it to build the URLs.")
    yield callbacks_door(AsyncClient(context.client).complete_with_token, context.settings)


def callbacks_door(
    complete_with_token: Complete, settings: Settings, clock: Callable[[], float] = monotonic
) -> Door:
    """Make the door; it also serves below the path of ``PUBLIC_URL``.

    The token in the URL is the only credential, so URLs are never logged.
    """
    attempts = _Attempts(clock)

    async def complete(request: Request) -> Response:
        call_id, token = request.path_params["call_id"], request.path_params["token"]
        origin = request.client.host if request.client else "", call_id[:LONGEST_ID]
        if (seconds := attempts.seconds_closed(origin)) > 0:
            text = "Too many callbacks to this call had a wrong URL."
            raise RequestError(text, status=429, headers={"Retry-After": str(ceil(seconds))})
        require_json(request.headers)
        try:
            await complete_with_token(call_id, token, *completion_of(await request.body()))
        except CallNotFoundError:
            attempts.note_wrong(origin)
            raise
        return JSONResponse({"id": call_id})

    paths = public_paths(PATH, settings.public_url)
    routes = [Route(path, complete, methods=["POST"]) for path in paths]
    most = INFLATION * settings.max_output_bytes + FRAME_BYTES
    return Door("callbacks", "/callbacks", routes, Access.OWN, max_body_bytes=most)


class _Attempts:
    """Counts the wrong tokens that each address has shown for each call in the current window.

    Behind a proxy all clients may have one address, so calls are counted apart: nobody can close the door to
    a call without its id. The pair whose window began first is forgotten first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: when the window began, and how many tokens were wrong in it, by address and call id
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}

    def seconds_closed(self, origin: tuple[str, str]) -> float:
        """Return for how long no more requests are looked at; 0 or less: they are."""
        began, count = self._windows.get(origin, (0.0, 0))
        return began + WINDOW_SECONDS - self._clock() if count >= MOST_ATTEMPTS else 0.0

    def note_wrong(self, origin: tuple[str, str]) -> None:
        """Count a token that opens nothing."""
        now = self._clock()
        began, count = self._windows.get(origin, (now, 0))
        if now - began >= WINDOW_SECONDS:
            del self._windows[origin]  # a new window goes to the end
            began, count = now, 0
        elif origin not in self._windows and len(self._windows) >= MOST_WINDOWS:
            del self._windows[next(iter(self._windows))]
        self._windows[origin] = began, count + 1


def completion_of(body: bytes) -> tuple[Any, str | Mapping[str, Any] | None]:
    """Read ``{"output": …}`` or ``{"error": {"message": …, "code"?: …}}``: the output and the error.

    Unknown fields are ignored, as everywhere on the wire.

    Raises:
        ToolInputValidationError: the body is not JSON, or does not have exactly one of the two fields.
    """
    try:
        fields = serializer.decode(body)
    except serializer.NotJsonError as error:
        raise ToolInputValidationError(f"The body is not JSON: {error}.") from error
    if not isinstance(fields, dict) or ("output" in fields) == ("error" in fields):
        raise ToolInputValidationError('The body must be an object with either "output" or "error".')
    if "output" in fields:
        return fields["output"], None
    if not isinstance(fields["error"], str | dict):
        raise ToolInputValidationError('"error" must be an object with a "message", or text.')
    return None, fields["error"]
