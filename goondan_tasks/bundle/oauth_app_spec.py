"""OAuthApps: providers of tokens, and our clients there (000 §12)."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from goondan_tasks.bundle.fields import NonEmpty, ResourceModel, ValueSource, checked
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.bundle.urls import BaseUrl, EndpointUrl, UrlPath

#: RFC 6749 §3.3
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
#: text with at least one {claim}
_TEMPLATE = re.compile(r"[^{}]*(\{[^{}\s]+\}[^{}]*)+")

OAuthScope = Annotated[
    str, checked(_SCOPE.fullmatch, "a scope", "Write one scope per item, without spaces and quotes.")
]
#: text with the provider's claims in braces
SubjectTemplate = Annotated[
    str,
    checked(
        _TEMPLATE.fullmatch,
        "a subject template",
        "Write the provider's claims in braces, such as slack:user:{team.id}:{authed_user.id}.",
    ),
]


class OAuthClient(ResourceModel):
    client_id: ValueSource
    client_secret: ValueSource


class OAuthEndpoints(ResourceModel):
    authorization_url: EndpointUrl | None = None
    token_url: EndpointUrl
    revoke_url: EndpointUrl | None = None
    user_info_url: EndpointUrl | None = None
    device_authorization_url: EndpointUrl | None = None


class OAuthRedirect(ResourceModel):
    """The URL to which the provider sends the user back."""

    callback_path: UrlPath
    #: comes before the path; by default ``GOONDAN_PUBLIC_URL``
    base_url: BaseUrl | None = None


class GoondanOptions(ResourceModel):
    """How a provider differs from others."""

    #: the subject that a token belongs to, built from the provider's claims
    subject: SubjectTemplate | None = None
    #: with ``subjectMode: global``: whether any account may give the first consent for the subject
    anyone: bool = False
    #: the provider's issuer identifier: every callback must name it in ``iss`` (RFC 9207)
    issuer: EndpointUrl | None = None
    #: how the client authenticates (RFC 6749 §2.3.1); the specification has the secret in the form
    client_auth: Literal["client_secret_post", "client_secret_basic"] = "client_secret_post"


class OAuthOptions(ResourceModel):
    """Options of a provider: strings are added to the authorization URL's query, others are notes."""

    model_config = ConfigDict(extra="allow")

    goondan: GoondanOptions = Field(default_factory=GoondanOptions)

    @property
    def query(self) -> dict[str, str]:
        return {name: value for name, value in (self.model_extra or {}).items() if isinstance(value, str)}


class OAuthAppSpec(ResourceModel):
    """A provider, our client there, and whose tokens are requested."""

    provider: NonEmpty
    flow: Literal["authorizationCode", "deviceCode"]
    subject_mode: Literal["global", "user"]
    client: OAuthClient
    endpoints: OAuthEndpoints
    scopes: Annotated[tuple[OAuthScope, ...], Field(strict=False, min_length=1)]
    redirect: OAuthRedirect | None = None
    options: OAuthOptions = Field(default_factory=OAuthOptions)


class OAuthAppResource(Resource):
    kind: Literal["OAuthApp"]
    spec: OAuthAppSpec


def scopes_beyond(wanted: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted scopes that are not allowed, each once, in order."""
    known = set(allowed)
    return tuple(dict.fromkeys(scope for scope in wanted if scope not in known))
