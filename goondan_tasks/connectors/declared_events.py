"""Events of declaring Connectors (upstream's v1.0), as those of today."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from broker_config import serializer
from goondan_tasks.authoring.connector_api import LONGEST_NAME, ConnectorEvent, TextMessage
from goondan_tasks.connectors.handover import Emitted, unwrapped
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import JsonObject, WireModel
from goondan_tasks.contract.wording import member


class DataImage(WireModel):
    """An image, by URL or as data."""

    type: Literal["image"]
    image: str


class DataFile(WireModel):
    """A file as data, in base64 or as a URL."""

    type: Literal["file"]
    data: str
    media_type: str


class DeclaredEvent(WireModel):
    """``{type: connector.event, name, message, properties?, auth?}``; the last two fields are ours."""

    type: Literal["connector.event"]
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    message: Annotated[TextMessage | DataImage | DataFile, Field(discriminator="type")]
    properties: JsonObject = Field(default_factory=dict)
    auth: JsonObject | None = None
    id: str | None = None
    instance_key: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredEvents:
    """Reads the events of one Connection.

    They name no instance: it is the property ``instanceKey``, or the trigger's, or the Connection's name,
    unless the rule that they match names another.
    """

    connection: str
    #: ``global`` or ``user``: which of the subjects an event must have (of a Connection with an OAuthApp)
    subject: str | None = None

    def __call__(self, value: Any) -> Emitted:
        """Read what a connector has emitted.

        Raises:
            pydantic.ValidationError: it is not an event.
            ConnectorError: it lacks the subject of the Connection's OAuthApp.
        """
        emitted, payload, call_id = unwrapped(value)
        event = DeclaredEvent.from_wire(emitted)
        if self.subject is not None and not member(member(event.auth, "subjects"), self.subject):
            raise ConnectorError(
                f"The event {event.name!r} has no auth.subjects.{self.subject}, which the OAuthApp of the "
                "Connection needs.",
                suggestion="Emit it with auth: {actor: {id}, subjects: {…}}.",
            )
        keys = (event.instance_key, event.properties.get("instanceKey"), member(payload, "instanceKey"))
        own = next((key for key in keys if isinstance(key, str) and key), self.connection)
        is_text = isinstance(event.message, TextMessage)
        return Emitted(
            ConnectorEvent(
                name=event.name,
                message=event.message if isinstance(event.message, TextMessage) else TextMessage(text=""),
                instance_key=own,
                properties={name: _flat(one) for name, one in event.properties.items()},
                id=event.id or call_id,
                auth=event.auth,
            ),
            content=None if is_text else [event.message.to_wire()],
        )


def _flat(value: Any) -> Any:
    """Return a property as rules compare it: lists and objects are JSON."""
    return serializer.encode(value).decode() if isinstance(value, list | dict) else value
