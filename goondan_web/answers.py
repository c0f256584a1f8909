"""Errors as answers: ``{"error": {"code", "message", "suggestion", "helpUrl"}}``, in every door."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.failure import describe

JSON = "application/json"
#: the HTTP status of each code; others are faults of the server
STATUSES = {
    "E_TOOL_INVALID_ARGS": 400,
    "E_TOOL_BAD_OUTPUT": 400,
    "E_CONNECTOR": 400,
    "E_AGENT_NOT_FOUND": 404,
    "E_CALL_NOT_FOUND": 404,
    "E_CALL_NO_OUTPUT": 409,
    "E_INSTANCE_FILE": 404,
    "E_INSTANCE_NOT_FOUND": 404,
    "E_SCHEDULE_NOT_FOUND": 404,
    "E_TOOL_NOT_IN_CATALOG": 404,
    "grant_not_found": 404,
    "E_BUNDLE_REVISION_UNAVAILABLE": 409,
    "E_CALL_CLOSED": 409,
    "E_CALL_NOT_REPLAYABLE": 409,
    "E_CONVERSATION": 409,
    "E_INSTANCE_BUSY": 409,
    "E_CALL_NOT_PENDING": 409,
    "E_TOOL_CALL_CONFLICT": 409,
    "E_OAUTH_STORE": 409,
    "E_OUTPUT_GONE": 410,
    "E_PAYLOAD_TOO_LARGE": 413,
    "E_BROKER_UNREACHABLE": 503,
    "E_NOT_CONFIRMED": 503,
    "E_WAIT_TIMEOUT": 504,
}
#: after how many seconds a client may ask again while Redis is away
RETRY_SECONDS = 5


class RequestError(GoondanError, code="E_REQUEST"):
    """The HTTP request cannot be answered as it was sent.

    ``status`` is the HTTP status of the answer, and ``headers`` are added to it.
    """

    suggestion = "Correct the request as the message says."
    documents_every_code: ClassVar[bool] = True
    status: int = 400

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message, suggestion=suggestion)
        if status is not None:
            self.status = status
        self.headers = dict(headers)


class UnauthorizedError(RequestError, code="E_UNAUTHORIZED"):
    """This needs a token: Authorization: Bearer TOKEN."""

    suggestion = (
        "Send a token in the header Authorization: one that `goondan tokens add` has printed, or "
        "the server's GOONDAN_HTTP_TOKEN."
    )
    status = 401


class ForbiddenError(RequestError, code="E_FORBIDDEN"):
    """The request is refused because of the page or the name from which it comes."""

    suggestion = (
        "Ask from a page of GOONDAN_PUBLIC_URL, or under the server's own name; "
        "if GOONDAN_HTTP_TOKEN is set, any name will do."
    )
    status = 403


class PathNotFoundError(RequestError, code="E_NOT_FOUND"):
    """There is nothing at this address."""

    suggestion = "Check the path; the server prints its addresses when it starts."
    status = 404


def require_json(headers: Headers) -> None:
    """Refuse a request whose body is not sent as JSON, or is compressed.

    Raises:
        RequestError: it is not, by its headers.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise RequestError(f"The body must be JSON, with Content-Type: {JSON}.", status=415)
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity"}:
        raise RequestError(
            f"The body has the Content-Encoding {coding[:50]!r}: send it as it is.", status=415
        )


def status_of(error: GoondanError) -> int:
    """Return the HTTP status of an error."""
    return error.status if isinstance(error, RequestError) else STATUSES.get(error.code, 500)


def status_of_kind(kind: type[GoondanError]) -> int:
    """Return the HTTP status that errors of a class have unless they are given another."""
    return kind.status if issubclass(kind, RequestError) else STATUSES.get(kind.code, 500)


def error_answer(error: GoondanError, help_url: str, status: int | None = None) -> Response:
    """Answer with an error of the tree, and its own status unless the door knows better."""
    status = status_of(error) if status is None else status
    headers: Mapping[str, str] = error.headers if isinstance(error, RequestError) else {}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer", **headers}
    if status == 503:
        headers = {"Retry-After": str(RETRY_SECONDS), **headers}
    described = describe(error, help_url=help_url, default=type(error))
    return JSONResponse({"error": described.to_wire()}, status, headers)
