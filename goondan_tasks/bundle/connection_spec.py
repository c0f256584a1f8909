"""Connectors and Connections, and what they have in ``spec.http`` (ours)."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from goondan_tasks.bundle.fields import (
    Items,
    KeptSpec,
    NonEmpty,
    OneRef,
    Positive,
    ResourceModel,
    Text,
    Texts,
    checked,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.reply_spec import OneReply
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.contract.messages import JsonObject

_SEGMENTS = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")

HttpMethod = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
#: below ``/connections``
ConnectionPath = Annotated[
    str,
    checked(_SEGMENTS.fullmatch, "a path", "Write it as in /slack/events: no query, no '/' at the end."),
]


class ConnectorHttp(ResourceModel):
    """The requests that a Connector answers."""

    #: by default the name of each Connection
    path: ConnectionPath | None = None
    methods: Annotated[Items[HttpMethod], Field(min_length=1)] = ("POST",)


class ConnectionHttp(ResourceModel):
    """Where one of several Connections of a Connector is reached."""

    path: ConnectionPath


class EventProperty(KeptSpec):
    type: Literal["string", "number", "boolean"]
    optional: bool = False


class DeclaredEvent(KeptSpec):
    """A type of event that a Connector emits, and the properties that rules can match."""

    name: NonEmpty
    properties: dict[NonEmpty, EventProperty] = Field(default_factory=dict)


class ConnectorSpec(KeptSpec):
    """A file that turns outside events into AgentEvents."""

    entry: NonEmpty
    events: Items[DeclaredEvent] = ()
    #: ours: whether it reads the standard input of ``goondan connectors run``
    stdin: bool = False
    #: without it the connector asks its source itself, and one process at a time runs it
    http: ConnectorHttp | None = None


class ConnectorResource(Resource):
    kind: Literal["Connector"]
    spec: ConnectorSpec


class IngressMatch(ResourceModel):
    """The event and properties to which a rule applies."""

    event: NonEmpty | None = None
    properties: JsonObject = Field(default_factory=dict)


class IngressRoute(ResourceModel):
    """The agent, by default the Swarm's entry agent, and the instance that an event goes to."""

    agent_ref: OneRef | None = None
    instance_key: NonEmpty | None = None
    #: the event's property that is the key; the prefix goes before it
    instance_key_property: NonEmpty | None = None
    instance_key_prefix: str | None = None

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.instance_key is not None and self.instance_key_property is not None:
            message = "'instanceKey' and 'instanceKeyProperty' exclude each other"
            raise FieldError(message, "Keep one of the two.")
        return self


class IngressRule(ResourceModel):
    """Where events go. The first matching rule counts; a rule without ``match`` matches all."""

    match: IngressMatch = Field(default_factory=IngressMatch)
    route: IngressRoute = Field(default_factory=IngressRoute)


class Ingress(KeptSpec):
    rules: Items[IngressRule] = ()


class VerifyWebhook(KeptSpec):
    """How a Connector knows that an event is genuine."""

    signing_secret: Text


class Verify(KeptSpec):
    webhook: VerifyWebhook | None = None


class ConnectionSpec(KeptSpec):
    """A Connector tied to a Swarm; the last three fields are ours."""

    connector_ref: OneRef
    swarm_ref: OneRef | None = None
    #: what the Connector reads as ``ctx.config``
    config: Texts = Field(default_factory=dict)
    #: what it reads as ``ctx.secrets``; no environment has them
    secrets: Texts = Field(default_factory=dict)
    verify: Verify = Field(default_factory=Verify)
    ingress: Ingress = Field(default_factory=Ingress)
    #: takes the answers back
    reply: OneReply | None = None
    http: ConnectionHttp | None = None
    #: no event is handed over while so many wait for its agent
    max_waiting: Positive = 1_000


class ConnectionResource(Resource):
    kind: Literal["Connection"]
    spec: ConnectionSpec
