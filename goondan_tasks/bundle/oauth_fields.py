"""The fields of an OAuthApp, each value by itself (000 §7.9, §12.5.7); the rest is in ``oauth_rules``."""

import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from goondan_tasks.bundle.fields import NonEmpty, ResourceModel
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.values import ValueSource
from goondan_tasks.loopback import is_loopback

#: RFC 6749 §3.3
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")
#: text with at least one {claim}, whose parts are separated by dots
_TEMPLATE = re.compile(r"[^{}]*(\{[^{}\s]+\}[^{}]*)+")
_NO_URL_CHARACTER = re.compile(r"[\x00-\x20\x7f-\uffff\\]")


def _check_url(url: str) -> str:
    """Check the URL of an endpoint (RFC 6749 §3.1, §3.2 on fragments and TLS; RFC 8252 §8.3 on loopback)."""
    parts = _split(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise FieldError(
            f"'{url[:80]}' must be an https URL",
            "Write https://…; http is for this machine alone (127.0.0.1).",
        )
    if parts.username is not None or parts.password is not None:
        raise FieldError("a URL must hold no password", "Write the client's id and secret under 'client'.")
    if "#" in url:
        raise FieldError(f"'{url[:80]}' has a fragment", "Leave out the '#' and what follows it.")
    return url


def _check_base_url(url: str) -> str:
    if "?" in _check_url(url):
        raise FieldError(f"'{url[:80]}' has a query", "Leave out the '?' and what follows it.")
    return url


def _split(url: str) -> SplitResult:
    error = FieldError(f"'{url[:80]}' is no URL", "Write it whole: https://host/path.")
    if _NO_URL_CHARACTER.search(url):
        raise error
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError as reason:
        raise error from reason
    if not parts.scheme or not parts.hostname:
        raise error
    return parts


def _check_scope(scope: str) -> str:
    if _SCOPE.fullmatch(scope):
        return scope
    raise FieldError(f"'{scope[:80]}' is no scope", "Write one scope an item, without spaces and quotes.")


def _check_path(path: str) -> str:
    if _PATH.fullmatch(path) and not {".", ".."} & set(path.split("/")):
        return path
    raise FieldError(f"'{path[:80]}' is no path", "Begin it with '/', such as /oauth/callback; no query.")


EndpointUrl = Annotated[str, AfterValidator(_check_url)]
BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
Scope = Annotated[str, AfterValidator(_check_scope)]
CallbackPath = Annotated[str, AfterValidator(_check_path)]


class OAuthClient(ResourceModel):
    """Who we are to the provider."""

    client_id: ValueSource
    client_secret: ValueSource


class OAuthEndpoints(ResourceModel):
    """Where the provider is reached."""

    authorization_url: EndpointUrl | None = None
    token_url: EndpointUrl
    revoke_url: EndpointUrl | None = None
    user_info_url: EndpointUrl | None = None
    device_authorization_url: EndpointUrl | None = None


class OAuthRedirect(ResourceModel):
    """Where the provider sends the user back to."""

    callback_path: CallbackPath
    #: what stands before the path; by default ``GOONDAN_PUBLIC_URL``
    base_url: BaseUrl | None = None


def _check_template(template: str) -> str:
    if _TEMPLATE.fullmatch(template):
        return template
    raise FieldError(
        f"'{template[:80]}' is no subject template",
        "Write what the provider says in braces, such as slack:user:{team.id}:{authed_user.id}.",
    )


class GoondanOptions(ResourceModel):
    """What a provider does in a way of its own, as far as this program has to know."""

    #: the subject that a token belongs to, made of what the provider says of it
    subject: Annotated[str, AfterValidator(_check_template)] | None = None
    #: of ``subjectMode: global``: whoever consents first gives the subject its account, whoever that is
    anyone: bool = False
    #: how the client shows who it is (RFC 6749 §2.3.1); the documents put the secret into the form
    client_auth: Literal["client_secret_post", "client_secret_basic"] = "client_secret_post"


class OAuthOptions(ResourceModel):
    """Texts are added to the authorization URL's query; what else stands here is for people."""

    model_config = ConfigDict(extra="allow")

    goondan: GoondanOptions = Field(default_factory=GoondanOptions)

    @property
    def query(self) -> dict[str, str]:
        """What is added to the authorization URL's query."""
        return {name: value for name, value in (self.model_extra or {}).items() if isinstance(value, str)}


class OAuthAppSpec(ResourceModel):
    """A provider, our client there, and whose tokens are asked for."""

    provider: NonEmpty
    flow: Literal["authorizationCode", "deviceCode"]
    subject_mode: Literal["global", "user"]
    client: OAuthClient
    endpoints: OAuthEndpoints
    scopes: Annotated[tuple[Scope, ...], Field(strict=False, min_length=1)]
    redirect: OAuthRedirect | None = None
    options: OAuthOptions = Field(default_factory=OAuthOptions)
