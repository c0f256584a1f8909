"""What the authorization server knows: its one client, and what it has given out."""

import time
from dataclasses import dataclass, field
from typing import Any

CLIENT_ID = "goondan"
CLIENT_SECRET = "client-secret-that-nobody-may-see"
SCOPES = ("chat:write", "channels:read", "files:read")


@dataclass
class User:
    """Somebody who consents."""

    id: str

    def get_user_id(self) -> str:
        return self.id


@dataclass
class Client:
    """The program that is registered, with its redirect URIs."""

    redirect_uris: list[str]
    client_id: str = CLIENT_ID

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uris[0]

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join(one for one in (scope or "").split() if one in SCOPES)

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in {"client_secret_post", "client_secret_basic"}

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return True


@dataclass
class Code:
    """An authorization code."""

    code: str
    user: User
    redirect_uri: str
    scope: str
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token:
    """A token, and whether it still counts."""

    access_token: str
    refresh_token: str | None
    scope: str
    user: User
    expires_at: float
    is_revoked: bool = False

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: Client) -> bool:
        return True


@dataclass
class DeviceCredential:
    """A device code, and who has said what about it."""

    device_code: str
    user_code: str
    scope: str
    expires_at: float

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_scope(self) -> str:
        return self.scope

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return time.time() > self.expires_at


@dataclass
class Ways:
    """What a test may have the server do; see ``POST /ways``."""

    #: seconds
    token_lifetime: float | None = 3600
    #: every answer of the token endpoint is an error 503
    is_out: bool = False
    #: instead of those that were asked for
    scope: str | None = None
    #: the token endpoint takes so long to answer, in seconds
    delay: float = 0
    #: so many polls of a device are answered with ``slow_down``
    slow_down: int = 0
    #: what the token endpoint adds to its answer
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Accounts:
    """All of it."""

    client: Client
    ways: Ways = field(default_factory=Ways)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    devices: dict[str, DeviceCredential] = field(default_factory=dict)
    #: what users have said, by user code
    answers: dict[str, tuple[User, bool]] = field(default_factory=dict)
    #: how often each grant type was asked for
    counts: dict[str, int] = field(default_factory=dict)
    #: every secret that was ever seen: codes, verifiers, tokens, device codes
    secrets: set[str] = field(default_factory=lambda: {CLIENT_SECRET})
    states: set[str] = field(default_factory=set)

    def token_of(self, text: str) -> Token | None:
        """Return the token that has this access or refresh token, if it still counts."""
        counting = (one for one in self.tokens if not one.is_revoked)
        return next((one for one in counting if text in {one.access_token, one.refresh_token}), None)
