"""The requests that one connector is answering: many at a time over the pipe to its process.

A request that cannot be answered gets an answer of its own: 413, 500, 503 or 504, never an exception. With
503 and 504 the sender is to send it again; events with ids are handed over once.
"""

import asyncio
import base64
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog

from goondan_tasks.authoring.webhooks import MAX_BODY_BYTES, HttpRequest, HttpResponse, json_response
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    ConnectorError,
    PayloadTooLargeError,
    TooManyWaitingError,
    UnconfirmedError,
    WebhookRefusedError,
)
from goondan_tasks.contract.messages import JsonObject

logger = structlog.get_logger("goondan.connector")

#: how many requests one connector may be answering, and the size of their bodies together
MOST_OPEN, MOST_OPEN_BYTES = 64, 33_554_432
#: how long it may take to answer one
ANSWER_SECONDS = 10.0
#: after how many seconds a sender may ask again
RETRY_SECONDS = 2

#: passing states, not faults of the connector
PASSING = {TooManyWaitingError.code, BrokerUnreachableError.code, UnconfirmedError.code}
#: headers of one connection, which the server writes itself
_SERVERS_OWN = {"connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_LAST_STATUS = 599
_WITHOUT_BODY = {204, 304}


@dataclass(slots=True)
class _Open:
    """A request that has no answer yet."""

    size: int
    #: a ``time.monotonic()``
    ends: float
    message: "Future[Mapping[str, Any]]" = field(default_factory=Future)


class OpenRequests:
    """Passes requests to the process that serves at the time, and its answers back."""

    def __init__(self, connection: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._log = logger.bind(connection=connection)
        self._seconds = answer_seconds
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._write: Callable[[JsonObject], object] | None = None
        self._end: Callable[[str], object] = print

    @property
    def is_served(self) -> bool:
        """Whether a process answers now."""
        return self._write is not None

    def attach(self, write: Callable[[JsonObject], object], end: Callable[[str], object]) -> None:
        """Begin: a process serves. ``write`` sends it a message without waiting, ``end`` ends it."""
        with self._lock:
            self._write, self._end = write, end

    def detach(self) -> None:
        """Answer the open requests: their process has ended."""
        with self._lock:
            self._write, gone = None, self._open
            self._open = {}
        for one in gone.values():
            _settle(
                one, {"error": {"code": BrokerUnreachableError.code, "message": "The connector has ended."}}
            )

    def respond(self, message: Mapping[str, Any]) -> None:
        """Take the answer of the process; one that nobody waits for any more makes room only."""
        with self._lock:
            found = self._open.pop(message.get("id"), None)  # type: ignore[arg-type]  # any JSON
        if found is not None:
            _settle(found, message)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the connector's answer to a request."""
        if len(request.body) > MAX_BODY_BYTES:
            text = f"The body has more than {MAX_BODY_BYTES:,} bytes."
            return failure(413, text, PayloadTooLargeError.code)
        number, one = self._begin(request)
        if one is None:
            return failure(503, "The connector cannot answer now.")
        try:
            message = await asyncio.wait_for(asyncio.wrap_future(one.message), self._seconds)
        except TimeoutError:
            self._log.error("connector.request-timeout", path=request.path, seconds=self._seconds)
            return failure(504, f"The connector did not answer within {self._seconds:g} s.")
        finally:
            if one.message.cancelled():
                self._call_off(number)
        return self._response(message)

    def _begin(self, request: HttpRequest) -> tuple[int, _Open | None]:
        """Pass a request on, if there is room for it."""
        now = time.monotonic()
        with self._lock:
            write, end = self._write, self._end
            if write is None:
                return 0, None
            size = sum(one.size for one in self._open.values()) + len(request.body)
            if len(self._open) >= MOST_OPEN or size > MOST_OPEN_BYTES:
                is_stuck = all(one.ends < now for one in self._open.values())
                write = None
            else:
                number, one = next(self._numbers), _Open(len(request.body), now + 2 * self._seconds)
                self._open[number] = one
        if write is not None:
            write({"type": "request", "id": number, **wire_of(request)})
            return number, one
        if is_stuck:
            end("It answers no requests.")
        return 0, None

    def _call_off(self, number: int) -> None:
        """Tell the process that nobody waits for an answer. Its place is free when it has answered."""
        with self._lock:
            write = self._write if number in self._open else None
        if write is not None:
            write({"type": "cancel", "id": number})

    def _response(self, message: Mapping[str, Any]) -> HttpResponse:
        error = message.get("error")
        if error is not None:
            return _failed(error if isinstance(error, dict) else {})
        try:
            return response_of(message)
        except (TypeError, ValueError) as fault:
            self._log.error("connector.bad-response", error=str(fault)[:1_000])
            return failure(500, "The connector failed.")


def _settle(one: _Open, message: Mapping[str, Any]) -> None:
    if one.message.set_running_or_notify_cancel():
        one.message.set_result(message)


def wire_of(request: HttpRequest) -> JsonObject:
    """Return a request as it goes over the pipe."""
    return {
        "method": request.method,
        "path": request.path,
        "query": dict(request.query),
        "headers": dict(request.headers),
        "body": base64.b64encode(request.body).decode(),
    }


def response_of(message: Mapping[str, Any]) -> HttpResponse:
    """Return the answer in a message of a process.

    Raises:
        TypeError, ValueError: it cannot be sent; the text says why.
    """
    status, headers = message.get("status"), message.get("headers") or {}
    if type(status) is not int or not 200 <= status <= _LAST_STATUS:
        raise ValueError(f"{status!r:.100} is not an HTTP status from 200 to {_LAST_STATUS}")
    if not isinstance(headers, dict):
        raise TypeError("the headers are not an object")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r:.100} cannot be sent")
    kept = {name: value.strip() for name, value in headers.items() if name.lower() not in _SERVERS_OWN}
    body = b"" if status in _WITHOUT_BODY else base64.b64decode(message.get("body") or b"")
    return HttpResponse(status, body, kept)


def failure(status: int, text: str, code: str = ConnectorError.code) -> HttpResponse:
    """Return an answer with ``{"error": {"code", "message"}}``; a passing state says when to ask again."""
    retry = {"retry-after": str(RETRY_SECONDS)} if status in (503, 504) else {}
    return json_response(status, {"error": {"code": code, "message": text}}, retry)


def _failed(error: Mapping[str, Any]) -> HttpResponse:
    """Answer for a connector that has raised. Only the texts of our own errors go to the sender."""
    code, text = error.get("code"), str(error.get("message"))[:1_000]
    if code == WebhookRefusedError.code:
        status = error.get("status")
        return failure(status if type(status) is int and 400 <= status < 500 else 401, text, code)
    if code in PASSING:
        return failure(503, text, code)
    if code == ConnectorError.code:  # an event that no agent takes, which was counted
        return failure(422, text, code)
    return failure(500, "The connector failed.")
