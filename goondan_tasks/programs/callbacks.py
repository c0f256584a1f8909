"""``goondan callbacks serve``: the completion of calls by ``POST /callbacks/{id}/{token}`` (DESIGN §6).

Needs the extra ``serve``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    GoondanError,
    PayloadTooLargeError,
    ToolInputValidationError,
)
from goondan_tasks.contract.failure import ErrorLike, describe
from goondan_tasks.programs.http import error_response

PATH = "/callbacks/{call_id}/{token}"
MEDIA_TYPE = "application/json"
#: how long receiving a body may take
BODY_SECONDS = 30.0
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

#: the HTTP status of each code
_STATUSES = {
    "E_TOOL_INVALID_ARGS": 400,
    "E_TOOL_BAD_OUTPUT": 400,
    "E_CALL_NOT_FOUND": 404,
    "E_CALL_CLOSED": 409,
    "E_CALL_NOT_PENDING": 409,
    "E_PAYLOAD_TOO_LARGE": 413,
    "E_BROKER_UNREACHABLE": 503,
}


#: a client's ``complete_with_token``; takes the call's id, the token, the output and the error
Complete = Callable[[str, str, Any, ErrorLike | None], Awaitable[None]]


def make_app(
    complete_with_token: Complete,
    settings: Settings,
    body_seconds: float = BODY_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> Starlette:
    """Make the application; it also serves below the path of ``PUBLIC_URL``.

    The token in the URL is the only credential, so URLs are never logged.
    """
    most = INFLATION * settings.max_output_bytes + FRAME_BYTES
    attempts = _Attempts(clock)

    async def complete(request: Request) -> Response:
        call_id, token = request.path_params["call_id"], request.path_params["token"]
        origin = request.client.host if request.client else "", call_id[:LONGEST_ID]
        if (seconds := attempts.seconds_closed(origin)) > 0:
            text = "Too many callbacks to this call had a wrong URL."
            return error_response(429, text, {"Retry-After": str(ceil(seconds))})
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != MEDIA_TYPE:
            return error_response(415, f"The body must be JSON, with Content-Type: {MEDIA_TYPE}.")
        try:
            async with asyncio.timeout(body_seconds):
                body = await _body(request, most)
            await complete_with_token(call_id, token, *completion_of(body))
        except TimeoutError:
            return error_response(408, f"The body did not come within {body_seconds:g} s.")
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except GoondanError as error:
            if isinstance(error, CallNotFoundError):
                attempts.note_wrong(origin)
            return _failed(error, settings.help_url)
        return JSONResponse({"id": call_id})

    prefixes = {"", urlsplit(settings.public_url or "").path.rstrip("/")}
    return Starlette(routes=[Route(prefix + PATH, complete, methods=["POST"]) for prefix in sorted(prefixes)])


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


async def _body(request: Request, most: int) -> bytes:
    """Read the body.

    Raises:
        PayloadTooLargeError: the body has more than ``most`` bytes.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise PayloadTooLargeError(
                f"The body is larger than {most} bytes.",
                suggestion="Put large data where the agent can read it, and complete the call with its path.",
            )
    return bytes(data)


def _failed(error: GoondanError, help_url: str) -> Response:
    status = _STATUSES.get(error.code, 500)
    headers = {"Retry-After": "5"} if status == 503 else None
    return JSONResponse({"error": describe(error, help_url=help_url).to_wire()}, status, headers)
