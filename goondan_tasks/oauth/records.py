"""What the OAuth store keeps: grants, and sessions in which somebody is asked for one (000 §12.5.4, §12.5.5).

Secrets are ``SecretStr``, which does not print; only a store writes them down, encrypted.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from goondan_tasks.messages import JsonObject, WireModel, epoch_milliseconds

Flow = Literal["authorization_code", "device_code"]
SubjectMode = Literal["global", "user"]

#: ``exchanging`` is ours: a callback that was let in, so that no other is (goondan-facts, 000 §12.5.6)
SessionStatus = Literal["pending", "exchanging", "completed", "failed", "expired"]


def _require_moment(text: str) -> str:
    epoch_milliseconds(text)
    return text


#: ISO 8601
Moment = Annotated[str, AfterValidator(_require_moment)]


class OAuthToken(WireModel):
    """What a provider has given out. Times are ISO 8601 UTC; without ``expires_at`` it does not expire."""

    token_type: str = "bearer"  # noqa: S105 - a kind, no secret
    access_token: SecretStr
    refresh_token: SecretStr | None = None
    expires_at: Moment | None = None


class OAuthGrant(WireModel):
    """A subject's consent to an OAuthApp, and its token; there is one for (``oauth_app``, ``subject``)."""

    #: the name of the OAuthApp
    oauth_app: str
    provider: str
    subject: str
    flow: Flow
    scopes_granted: tuple[str, ...]
    token: OAuthToken
    created_at: str
    #: that of the token, too, unless the grant is revoked
    updated_at: Moment
    revoked: bool = False
    provider_data: JsonObject = Field(default_factory=dict)
    #: grows with each change; what was read is replaced only while it is the newest
    generation: int = 1

    @property
    def name(self) -> str:
        """The record's name."""
        return grant_name(self.oauth_app, self.subject)


class Resume(WireModel):
    """Where ``auth.granted`` goes, and the context of the Turn that it begins (000 §12.5.6 r7)."""

    swarm: str
    agent_name: str
    instance_key: str
    origin: JsonObject | None = None
    auth: JsonObject | None = None
    #: of the Turn that asked, so that the trace goes on
    trace_id: str | None = None
    correlation_id: str | None = None

    @property
    def place(self) -> str:
        """What two requests of one agent's instance have in common."""
        return _digest(self.swarm, self.agent_name, self.instance_key)


class DeviceCode(WireModel):
    """What the user is told in the device code flow (RFC 8628 §3.2); ``device_code`` is not for him."""

    verification_uri: str
    verification_uri_complete: str | None = None
    user_code: str
    expires_in: int
    interval: int = 5
    device_code: SecretStr


class AuthSession(WireModel):
    """One request for a user's consent, until it is completed or expires."""

    #: ``as-`` and 24 hex digits
    id: str
    oauth_app: str
    provider: str
    subject_mode: SubjectMode
    #: whose consent is expected
    subject: str
    requested_scopes: tuple[str, ...]
    flow: Flow
    #: of the authorization code flow (RFC 7636)
    code_verifier: SecretStr | None = None
    code_challenge: str | None = None
    #: ``<id>.<43 random letters>``
    state: SecretStr | None = None
    redirect_uri: str | None = None
    #: of the device code flow
    device: DeviceCode | None = None
    status: SessionStatus = "pending"
    #: why it failed
    reason: str | None = None
    created_at: str
    expires_at: Moment
    #: nobody if it was asked for at the command line
    resume: Resume | None = None
    #: others who asked for the same consent meanwhile, and are resumed by it, too
    also_resume: tuple[Resume, ...] = ()

    @property
    def resumes(self) -> tuple[Resume, ...]:
        """All who asked, each place once, the first one first."""
        asked = [one for one in (self.resume, *self.also_resume) if one is not None]
        return tuple({one.place: one for one in asked}.values())


class GrantSummary(WireModel):
    """What may be shown of a grant; it can be read without a key."""

    #: of the record
    name: str
    oauth_app: str
    provider: str
    subject: str
    flow: Flow
    scopes_granted: tuple[str, ...]
    #: of the access token
    expires_at: str | None = None
    has_refresh_token: bool = False
    created_at: str
    updated_at: str
    revoked: bool = False
    #: the keys with which its secrets are encrypted
    key_ids: tuple[str, ...] = ()


class SessionSummary(WireModel):
    """What is known of a session without a key."""

    oauth_app: str
    subject: str
    requested_scopes: tuple[str, ...] = ()
    expires_at: Moment


def grant_name(oauth_app: str, subject: str) -> str:
    """Return the name of a grant's record: ``sha256:<hex>`` over app and subject, each with its length."""
    return f"sha256:{_digest(oauth_app, subject)}"


def request_name(session: AuthSession) -> str:
    """Return what sessions of a subject have in common that ask for the same: scopes and flow."""
    return _digest(" ".join(sorted(set(session.requested_scopes))), session.flow)


def as_of(session: AuthSession, now: float) -> AuthSession:
    """Return a session as it stands at ``now`` (ms): expired, if nobody completed it in time."""
    is_open = session.status in {"pending", "exchanging"}
    if is_open and epoch_milliseconds(session.expires_at) <= now:
        return session.model_copy(update={"status": "expired"})
    return session


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()
