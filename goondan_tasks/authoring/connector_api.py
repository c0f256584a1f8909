"""The API for authors of connectors: ``connect(ctx)`` and its :class:`ConnectorContext`.

``spec.entry`` of a Connector names a Python file with ``connect``, plain or ``async``. It receives events
from outside, a chat or a queue say, and emits each as a :class:`ConnectorEvent`. It decides nothing about
where events go: the Connection's rules do. Each Connection runs it in a process of its own, as ``goondan
connectors run`` says.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY, InstanceKey, JsonObject, WireModel

__all__ = [
    "Accepted",
    "Connect",
    "ConnectorContext",
    "ConnectorEvent",
    "Cursor",
    "FileMessage",
    "ImageMessage",
    "TextMessage",
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

        During an outage of Redis it waits.

        Raises:
            ConnectorError: the event is not valid, or no rule leads anywhere; the message says why.
        """


Connect = Callable[[ConnectorContext], Awaitable[None] | None]
