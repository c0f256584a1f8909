"""A connector's context without Redis, for plain functions and for coroutines."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from goondan_tasks.authoring.connector_api import Accepted, ConnectorEvent, Line
from goondan_tasks.authoring.webhooks import HttpRequest, signing_secret, verify
from goondan_tasks.contract.errors import ConnectorError

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


def serving(connect: Any, config: Mapping[str, str] | None = None, **fields: Any) -> "FakeContext":
    """Return the context of a connector that answers requests, whose signing secret is ``SECRET``."""
    ctx = FakeContext(config or {}, {"SIGNING_SECRET": SECRET}, KeptCursor(is_async=True), **fields)
    asyncio.run(connect(ctx))
    return ctx


def signature(data: bytes) -> str:
    """Return the HMAC of what is signed, in hex."""
    return hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()


class Enough(BaseException):
    """Ends a connector that would run for ever."""


@dataclass
class KeptCursor:
    """A cursor; ``ends`` says after which value the connector is ended."""

    value: Any = None
    ends: Callable[[Any], bool] = lambda _: False
    is_async: bool = False

    def get(self) -> Any:
        return self._answer(self.value)

    def set(self, value: Any) -> Any:
        self.value = value
        if self.ends(value):
            raise Enough
        return self._answer(None)

    def _answer(self, value: Any) -> Any:
        return _coroutine(value) if self.is_async else value


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def _line(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _line


@dataclass
class FakeContext:
    """Keeps what is emitted; an event whose text is among ``refused`` is not taken."""

    config: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    cursor: KeptCursor = field(default_factory=KeptCursor)
    refused: frozenset[str] = frozenset()
    connection_name: str = "main"
    connector_name: str = "built-in"
    logger: Any = field(default_factory=Lines)
    #: answers requests, once the connector has begun to
    handler: Any = None
    #: what ``emit`` raises
    failure: ConnectorError | None = None
    lines: list[Line] = field(default_factory=list)
    events: list[ConnectorEvent] = field(default_factory=list)

    def emit(self, event: ConnectorEvent | Mapping[str, Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        try:
            read = event if isinstance(event, ConnectorEvent) else ConnectorEvent.from_wire(event)
        except ValidationError as error:
            raise ConnectorError("The event is not valid.") from error
        if read.message.as_text() in self.refused:
            raise ConnectorError("no rule leads anywhere")
        self.events.append(read)
        accepted = Accepted(agent="clerk", instance_key=read.instance_key, call_id="call")
        return _coroutine(accepted) if self.cursor.is_async else accepted

    def verify(self, request: HttpRequest, scheme: Any, *, secret: str | None = None, **more: Any) -> None:
        verify(request, scheme, signing_secret(self.secrets) if secret is None else secret, **more)

    def http(self, handler: Any) -> Any:
        self.handler = handler
        return _coroutine(None)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Any:
        """Return the answer to a request; the connector is async."""
        request = HttpRequest("POST", "/connections/main", {}, headers, body)
        return asyncio.run(self.handler(request))

    def read_line(self) -> Line | None:
        return self.lines.pop(0) if self.lines else None

    @property
    def texts(self) -> list[str]:
        return [event.message.as_text() for event in self.events]


async def _coroutine(value: Any) -> Any:
    return value
