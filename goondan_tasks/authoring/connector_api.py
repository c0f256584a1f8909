"""The API for authors of connectors: ``connect(ctx)`` and its :class:`ConnectorContext`.

``spec.entry`` of a Connector names a Python file with ``connect``, plain or ``async``. It receives events
from outside, a chat or a queue say, and emits each as a :class:`ConnectorEvent`. It decides nothing about
where events go: the Connection's rules do. Each Connection runs it in a process of its own, as ``goondan
connectors run`` says.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.authoring.webhooks import (
    MAX_AGE_SECONDS,
    Handler,
    HttpRequest,
    HttpResponse,
    Scheme,
    verify,
)
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY, InstanceKey, JsonObject, WireModel

__all__ = [
    "Accepted",
    "Connect",
    "ConnectorContext",
    "ConnectorEvent",
    "Cursor",
    "FileMessage",
    "HttpRequest",
    "HttpResponse",
    "ImageMessage",
    "Line",
    "TextMessage",
    "verify",
]

#: of an event's id and name, in characters
LONGEST_ID, LONGEST_NAME = 1_000, 200


class TextMessage(WireModel):
    """A message of text."""

    type: Literal["text"] = "text"
    text: str

    def as_text(self) -> str:
        """Return what the agent reads."""
        return self.text


class ImageMessage(WireModel):
    """A message that is an image at a URL."""

    type: Literal["image"] = "image"
    url: str

    def as_text(self) -> str:
        """Return what the agent reads."""
        return f"[image] {self.url}"


class FileMessage(WireModel):
    """A message that is a file at a URL."""

    type: Literal["file"] = "file"
    url: str
    name: str

    def as_text(self) -> str:
        """Return what the agent reads."""
        return f"[file:{self.name}] {self.url}"


ConnectorMessage = Annotated[TextMessage | ImageMessage | FileMessage, Field(discriminator="type")]


def property_text(value: Any) -> Any:
    """Return a property as text: ``true``, ``false``, or a number as JSON writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else value


def _texts(properties: Any) -> Any:
    if not isinstance(properties, Mapping):
        return properties
    return {name: property_text(value) for name, value in properties.items() if value is not None}


class ConnectorEvent(WireModel):
    """An event from outside.

    On the wire: ``{name, message, properties?, instanceKey, id?, auth?}``. Properties are texts; numbers and
    booleans become texts, and null is left out.
    """

    #: as the Connector declares it
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    message: ConnectorMessage
    #: the conversation that it belongs to, unless the Connection's rule names another
    instance_key: Annotated[InstanceKey, Field(max_length=LONGEST_INSTANCE_KEY)]
    properties: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
    #: what the source calls it: an event that is emitted again with this id begins no second Turn
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | None = None
    #: whom the agent acts for, ``{actor: {id}, subjects: {global?, user?}}``
    auth: JsonObject | None = None


class Accepted(WireModel):
    """Where an event went, and whether it was new."""

    agent: str
    instance_key: str
    #: the id of the event's Turn, as ``goondan show`` takes it
    call_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the standard input of ``goondan connectors run``."""

    #: without its end
    text: str
    #: its place, from 0
    number: int
    #: names the program that reads it; with the number it is the line's id
    program: str


class Cursor(Protocol):
    """The place that a connector has reached in its source, kept in Redis. Only the process that has the
    Connection's lease may move it."""

    def get(self) -> Any:
        """Return the stored JSON, or ``None``. A coroutine in async code."""

    def set(self, value: Any) -> Any:
        """Store any JSON of at most 64 KiB. A coroutine in async code.

        Raises:
            ConnectorError: another process has the Connection's lease now.
        """


class ConnectorContext(Protocol):
    """What ``connect`` gets. Its methods are coroutines in async code; in a plain function they block."""

    @property
    def connection_name(self) -> str:
        """The name of the Connection."""

    @property
    def connector_name(self) -> str:
        """The name of the Connector."""

    @property
    def config(self) -> Mapping[str, str]:
        """The Connection's ``config``, resolved."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """The Connection's ``secrets``, resolved; they are in no environment."""

    @property
    def logger(self) -> Logger:
        """Logs lines with the Connection's name."""

    @property
    def cursor(self) -> Cursor:
        """The stored place in the source."""

    def emit(self, event: ConnectorEvent | Mapping[str, Any]) -> Any:
        """Hand an event over; return an :class:`Accepted` when it is stored: from then on it is not lost.

        During an outage of Redis it waits, and while ``maxWaiting`` events wait for the agent. In a handler
        of requests it does not wait for long.

        Raises:
            ConnectorError: the event is not valid, or no rule leads anywhere; the message says why.
            TooManyWaitingError, BrokerUnreachableError: the event is to be emitted again later, so the cursor
                must not pass it. This comes in a handler of requests, where the answer is 503 if it is not
                caught, and when the process is to end. It is a ConnectorError with their ``code``.
        """

    def http(self, handler: Handler) -> Any:
        """Answer the requests to this Connection until the process ends; ``spec.http`` declares them.

        An async ``connect`` awaits it, and the handler is a coroutine or not; many run at a time. In a plain
        ``connect`` it blocks, and the handler is called in threads. An answer that takes longer than 10 s
        is given up: 504.

        Raises:
            ConnectorError: the Connector declares no ``http``, or this was called before.
        """

    def read_line(self) -> Any:
        """Return the next :class:`Line` of the program's standard input, ``None`` at its end.

        Asking for it says that the last one is dealt with: a line is given again to a connector that was
        started again before it asked.

        Raises:
            ConnectorError: the Connector does not say ``stdin: true``.
        """

    def verify(
        self,
        request: HttpRequest,
        scheme: Scheme,
        *,
        secret: str | None = None,
        header: str | None = None,
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        """Return if a request is signed as :func:`verify` says; the default secret is ``SIGNING_SECRET``.

        Raises:
            WebhookRefusedError: it is not; the answer is 401 if this is not caught.
            ConnectorError: the Connection has no such secret, or the arguments are wrong.
        """


Connect = Callable[[ConnectorContext], Awaitable[None] | None]
