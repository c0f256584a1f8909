"""Connectors and Connections of ``agents.example.io/v1alpha1``, whose documents know two kinds of them.

A *declaring* Connector says what its entry is called for (``triggers[].type``; upstream's v1.0), and its
Connections route its events by name and properties, as today. A *canonical* one names functions of its entry
(``triggers[].handler``; v0.8): their events say which agent they are for, or leave that to rules with paths
into what was received (``ingress`` of the Connector; ``rules`` of a Connection).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from goondan_tasks.bundle.connection_spec import (
    ConnectionPath,
    ConnectionResource,
    ConnectionSpec,
    ConnectorHttp,
    ConnectorResource,
    ConnectorSpec,
)
from goondan_tasks.bundle.fields import (
    Items,
    NonEmpty,
    OneRef,
    ResourceModel,
    Text,
    by_rule,
    checked,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.timing import require_cron, require_zone
from goondan_tasks.contract.wording import member

TriggerType = Literal["http", "cron", "cli", "custom"]
#: the fields that only a canonical Connector has
_CANONICAL = ("type", "ingress", "egress", "auth")
_PATH = re.compile(r"\$(\.[^.\s]+)+")

Path = Annotated[str, checked(_PATH.fullmatch, "a path", "Write names after '$', such as $.event.thread_ts.")]


class HttpEndpoint(ResourceModel):
    """Where requests arrive."""

    path: ConnectionPath
    method: Literal["GET", "POST", "PUT", "DELETE"]


class Trigger(ResourceModel):
    """What a Connector's entry, or the function ``handler`` of it, is called for."""

    type: TriggerType | None = None
    endpoint: HttpEndpoint | None = None
    schedule: Annotated[str, by_rule(require_cron)] | None = None
    #: ours
    time_zone: Annotated[str, by_rule(require_zone)] | None = None
    handler: (
        Annotated[str, checked(str.isidentifier, "the name of a function", "Write the export's name alone.")]
        | None
    ) = None

    @property
    def requests(self) -> HttpEndpoint | None:
        """Where requests arrive that call it: by default at the name of its ``handler``."""
        if self.type is None and self.handler is not None:
            return HttpEndpoint(path=f"/{self.handler}", method="POST")
        return self.endpoint

    @model_validator(mode="after")
    def _has_its_fields(self) -> Self:
        for kind, name, value in (("http", "endpoint", self.endpoint), ("cron", "schedule", self.schedule)):
            if self.type == kind and value is None:
                raise FieldError(f"a trigger of type '{kind}' needs '{name}'", f"Add '{name}'.")
            if self.type != kind and value is not None:
                raise FieldError(f"'{name}' is for 'type: {kind}'", f"Write 'type: {kind}', or remove it.")
        if self.time_zone is not None and self.type != "cron":
            raise FieldError("'timeZone' is for 'type: cron'", "Remove it.")
        return self


class ConnectorAuth(ResourceModel):
    """Whose tokens a connector gets: those of an OAuthApp, or one token."""

    oauth_app_ref: OneRef | None = None
    static_token: Text | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.oauth_app_ref is None) == (self.static_token is None):
            message = "exactly one of 'oauthAppRef' and 'staticToken' is required"
            raise FieldError(message, "Keep one of the two.")
        return self


class PathRoute(ResourceModel):
    """Where events go; the paths lead into what was received."""

    swarm_ref: OneRef
    instance_key_from: Path | None = None
    input_from: Path | None = None
    #: by default the Swarm's entry agent
    agent_name: NonEmpty | None = None


class PathRule(ResourceModel):
    """The first rule whose ``match`` is in what was received counts; without ``match`` it is any."""

    match: JsonObject = Field(default_factory=dict)
    route: PathRoute


class UpdatePolicy(ResourceModel):
    mode: Literal["replace", "updateInThread", "append"]
    debounce_ms: Annotated[int, Field(ge=0)] | None = None


class Egress(ResourceModel):
    """Kept, without effect: answers are sent by tools."""

    update_policy: UpdatePolicy | None = None


class V1ConnectorSpec(ConnectorSpec):
    """A file that turns outside events into AgentEvents, and what it is called for."""

    runtime: Literal["node", "python"] | None = None
    #: empty for a canonical Connector of the type ``cli``
    entry: NonEmpty = ""
    triggers: Items[Trigger] = ()
    #: of canonical ones
    type: NonEmpty | None = None
    auth: ConnectorAuth | None = None
    ingress: Items[PathRule] = ()
    egress: Egress | None = None

    @property
    def is_canonical(self) -> bool:
        """Whether its events say which agent they are for."""
        return is_canonical(self.model_dump(by_alias=True, exclude_unset=True))


class V1ConnectorResource(ConnectorResource):
    spec: V1ConnectorSpec


class V1ConnectionSpec(ConnectionSpec):
    """A Connector tied to a Swarm, with whose tokens it gets."""

    auth: ConnectorAuth | None = None
    #: of a canonical Connector, instead of its ``ingress``
    rules: Items[PathRule] = ()
    egress: Egress | None = None


class V1ConnectionResource(ConnectionResource):
    spec: V1ConnectionSpec


def http_of(spec: ConnectorSpec) -> ConnectorHttp | None:
    """Return the requests that a Connector answers: those of ``http``, or of its triggers."""
    triggers = spec.triggers if isinstance(spec, V1ConnectorSpec) else ()
    endpoints = [one.requests for one in triggers if one.requests is not None]
    if spec.http is not None or not endpoints:
        return spec.http
    path = endpoints[0].path
    return ConnectorHttp(path=path, methods=tuple(one.method for one in endpoints if one.path == path))


def is_canonical(spec: Any) -> bool:
    """Return whether the YAML of a Connector's ``spec`` is that of a canonical one."""
    if not isinstance(spec, Mapping):
        return False
    triggers = spec.get("triggers")
    names = any(member(one, "handler") for one in triggers) if isinstance(triggers, list | tuple) else False
    return names or any(spec.get(name) is not None for name in _CANONICAL)
