"""OAuth's records: grants and sessions, their documents (000 §12.5.4, §12.5.5), and the errors of OAuth.

Secrets are ``SecretStr``, which prints a mask; documents hold them encrypted. The fields ``v``,
``generation``, ``redirectUri``, ``device``, ``reason``, ``alsoResume`` and the trace are our additions.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_serializer, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core.core_schema import FieldSerializationInfo, ValidationInfo

from goondan_tasks.contract.errors import GoondanError, OAuthStoreError
from goondan_tasks.contract.messages import WIRE_VERSION, IsoTime, JsonObject, WireModel, epoch_milliseconds
from goondan_tasks.oauth.crypto import Cipher, SecretField

API_VERSION = "agents.example.io/v1alpha1"
GRANT = "OAuthGrantRecord"
SESSION = "AuthSessionRecord"

Flow = Literal["authorization_code", "device_code"]
SubjectMode = Literal["global", "user"]

#: ``exchanging`` is our addition: the session's only callback has been admitted (000 §12.5.6)
SessionStatus = Literal["pending", "exchanging", "completed", "failed", "expired"]

_SECRETS = ("access_token", "refresh_token", "code_verifier", "state", "device_code")


class OAuthError(GoondanError):
    """There is no token; ``docs/reference/oauth.md`` lists the values of ``code`` (000 §12.5.2)."""

    code = "configurationError"
    suggestion = "Read the message; `goondan oauth apps` and `goondan oauth sessions` show the current state."


class GrantNotFoundError(OAuthError):
    """The subject has given no consent to the app."""

    code = "grant_not_found"
    suggestion = "`goondan oauth grants` lists them all."


class ConsentError(OAuthError):
    """Nothing was granted; ``code`` is one of the specification or the provider's own."""

    code = "token_exchange_failed"
    suggestion = "Ask for the token again: it comes with a new link for the user."


class ProviderRefusedError(OAuthError):
    """The provider refused; ``error`` is its own code (RFC 6749 §5.2)."""

    def __init__(self, message: str, *, error: str) -> None:
        super().__init__(message)
        self.error = error


class ProviderUnavailableError(OAuthError):
    """The provider gave no usable answer; the same request may succeed later.

    With ``is_in_doubt`` the provider may have acted on the request nevertheless.
    """

    def __init__(self, message: str, *, is_in_doubt: bool = True) -> None:
        super().__init__(message)
        self.is_in_doubt = is_in_doubt


class _Record(WireModel):
    """A record; validation and dump with a context ``(cipher, place)`` decrypt and encrypt its secrets."""

    @field_serializer(*_SECRETS, check_fields=False)
    def _encrypt(self, secret: SecretStr | None, info: FieldSerializationInfo) -> Any:
        if secret is None or info.context is None:
            return secret
        cipher, place = info.context
        return cipher.encrypt(secret, place._replace(field=to_camel(info.field_name)))

    @field_validator(*_SECRETS, mode="before", check_fields=False)
    @classmethod
    def _decrypt(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or info.context is None:
            return value
        cipher, place = info.context
        return cipher.decrypt(value, place._replace(field=to_camel(info.field_name or "")))


class OAuthToken(_Record):
    """A provider's token. Times are ISO 8601 UTC; without ``expires_at`` it does not expire."""

    token_type: str = "bearer"  # noqa: S105 - a kind, no secret
    access_token: SecretStr
    refresh_token: SecretStr | None = None
    expires_at: IsoTime | None = None


class _GrantFacts(WireModel):
    """The public fields of a grant."""

    #: the name of the OAuthApp
    oauth_app: str
    provider: str
    subject: str
    flow: Flow
    scopes_granted: tuple[str, ...]
    created_at: str
    #: also the time when the token was issued, unless the grant is revoked
    updated_at: IsoTime
    revoked: bool = False


class GrantSummary(_GrantFacts):
    """The public part of a grant, which can be read without a key."""

    #: the record's name
    name: str
    #: of the access token
    expires_at: str | None = None
    has_refresh_token: bool = False
    #: the keys that its secrets are encrypted with
    key_ids: tuple[str, ...] = ()


class OAuthGrant(_GrantFacts):
    """A subject's consent to an OAuthApp, and its token; there is one per (``oauth_app``, ``subject``)."""

    token: OAuthToken
    provider_data: JsonObject = Field(default_factory=dict)
    #: grows with each change; a write names the generation that it replaces
    generation: int = 1

    @property
    def name(self) -> str:
        return grant_name(self.oauth_app, self.subject)

    def allows(self, scopes: tuple[str, ...]) -> bool:
        """Return whether the grant is not revoked and covers the scopes."""
        return not self.revoked and set(scopes) <= set(self.scopes_granted)

    def outlives(self, moment: float) -> bool:
        """Return whether the token is valid after ``moment`` (ms since the epoch)."""
        expires_at = self.token.expires_at
        return expires_at is None or epoch_milliseconds(expires_at) > moment

    def is_due(self, now: float, *, min_ttl_ms: float) -> bool:
        """Return whether the token must be refreshed at ``now`` (ms) to be valid for ``min_ttl_ms``.

        If this provider's tokens never live that long, a token in the first half of its life counts as new;
        otherwise every request would refresh it.
        """
        if self.token.expires_at is None:
            return False
        lifetime = epoch_milliseconds(self.token.expires_at) - epoch_milliseconds(self.updated_at)
        return not self.outlives(now + (min_ttl_ms if lifetime > min_ttl_ms else lifetime / 2))


class Resume(WireModel):
    """The target of ``auth.granted``, and the context of the Turn that it starts (000 §12.5.6 r7)."""

    swarm: str
    agent_name: str
    instance_key: str
    origin: JsonObject | None = None
    auth: JsonObject | None = None
    #: of the Turn that asked, so that the trace continues
    trace_id: str | None = None
    correlation_id: str | None = None

    @property
    def target(self) -> str:
        """A digest that identifies the agent instance."""
        return _digest(self.swarm, self.agent_name, self.instance_key)

    @classmethod
    def from_document(cls, document: JsonObject) -> "Resume":
        return cls.from_wire({**document, "swarm": document["swarmRef"]["name"]})

    def to_document(self) -> JsonObject:
        wire = self.to_wire()
        return {"swarmRef": {"kind": "Swarm", "name": wire.pop("swarm")}, **wire}


class DeviceCode(_Record):
    """A device code and what its user sees (RFC 8628 §3.2); ``device_code`` itself is secret."""

    verification_uri: str
    verification_uri_complete: str | None = None
    user_code: str
    #: seconds
    expires_in: int
    interval: int = 5
    device_code: SecretStr


class SessionSummary(WireModel):
    """The part of a session that can be read without a key."""

    oauth_app: str
    #: whose consent is expected
    subject: str
    requested_scopes: tuple[str, ...] = ()
    expires_at: IsoTime


class AuthSession(SessionSummary, _Record):
    """One request for a user's consent, until it is completed or expires."""

    #: ``as-`` and 24 hex digits
    id: str
    provider: str
    subject_mode: SubjectMode
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
    #: ``None`` if it was requested at the command line
    resume: Resume | None = None
    #: other instances that requested the same consent, and are also resumed by it
    also_resume: tuple[Resume, ...] = ()

    @property
    def resumes(self) -> tuple[Resume, ...]:
        """All instances to resume, each once, in the order of their requests."""
        requested = [one for one in (self.resume, *self.also_resume) if one is not None]
        return tuple({one.target: one for one in requested}.values())

    @property
    def request(self) -> str:
        """A digest that identifies the requested scopes and the flow."""
        return _digest(" ".join(sorted(set(self.requested_scopes))), self.flow)


_AnyRecord = TypeVar("_AnyRecord", OAuthGrant, GrantSummary, AuthSession, SessionSummary)


def grant_name(oauth_app: str, subject: str) -> str:
    """Return the name of a grant's record: ``sha256:<hex>`` over app and subject, each with its length."""
    return f"sha256:{_digest(oauth_app, subject)}"


def as_of(session: AuthSession, now: float) -> AuthSession:
    """Return a session as of ``now`` (ms): an open one may have expired."""
    is_open = session.status in {"pending", "exchanging"}
    if is_open and epoch_milliseconds(session.expires_at) <= now:
        return session.model_copy(update={"status": "expired"})
    return session


def write_grant(grant: OAuthGrant, cipher: Cipher) -> str:
    context = cipher, SecretField(GRANT, grant.name)
    spec = grant.model_dump(by_alias=True, exclude_none=True, context=context)
    return _document(GRANT, grant.name, spec)


def read_grant(text: str | bytes, name: str, cipher: Cipher) -> OAuthGrant:
    """Read the grant that is stored as ``name``.

    Raises:
        OAuthStoreError: the record is damaged, or was encrypted with a key that this process lacks.
    """
    context = cipher, SecretField(GRANT, name)
    grant = _read(text, GRANT, name, lambda spec: OAuthGrant.model_validate(spec, context=context))
    if grant.name != name:
        raise OAuthStoreError.of_record(name, f"{GRANT} {name} is damaged: it is of another app or subject.")
    return grant


def read_summary(text: str | bytes, name: str) -> GrantSummary:
    """Read the public part of a grant; raises as :func:`read_grant` does."""

    def build(spec: JsonObject) -> GrantSummary:
        token = spec["token"]
        facts = {
            "name": name,
            "expiresAt": token.get("expiresAt"),
            "hasRefreshToken": "refreshToken" in token,
        }
        return GrantSummary.from_wire({**spec, **facts, "keyIds": sorted(_key_ids(text))})

    return _read(text, GRANT, name, build)


def write_session(session: AuthSession, cipher: Cipher) -> str:
    context = cipher, SecretField(SESSION, session.id)
    spec = session.model_dump(by_alias=True, exclude_none=True, exclude={"id"}, context=context)
    flow: JsonObject = {"type": spec["flow"]}
    flow |= {field: spec.pop(field) for field in ("redirectUri", "state", "device") if field in spec}
    if "codeVerifier" in spec:
        pkce = {field: spec.pop(field) for field in ("codeVerifier", "codeChallenge")}
        flow["pkce"] = {"method": "S256", **pkce}
    spec |= {
        "flow": flow,
        "resume": session.resume and session.resume.to_document(),
        "alsoResume": [one.to_document() for one in session.also_resume],
    }
    return _document(SESSION, session.id, spec)


def read_session(text: str | bytes, name: str, cipher: Cipher) -> AuthSession:
    """Read the session that is stored as ``name``; raises as :func:`read_grant` does."""

    def build(spec: JsonObject) -> AuthSession:
        flow = spec["flow"]
        resumes = {
            "resume": Resume.from_document(spec["resume"]) if spec.get("resume") else None,
            "alsoResume": [Resume.from_document(one) for one in spec.get("alsoResume", ())],
        }
        fields = {**spec, **flow, **flow.get("pkce", {}), **resumes, "id": name, "flow": flow["type"]}
        return AuthSession.model_validate(fields, context=(cipher, SecretField(SESSION, name)))

    return _read(text, SESSION, name, build)


def read_session_summary(text: str | bytes, name: str) -> SessionSummary:
    """Read the part of a session that needs no key; raises as :func:`read_grant` does."""
    return _read(text, SESSION, name, SessionSummary.from_wire)


def encrypted_again(text: str | bytes, name: str, cipher: Cipher) -> str | None:
    """Return a record's document, encrypted with the current key; ``None`` if it already is.

    Raises:
        OAuthStoreError: the record cannot be read.
    """
    try:
        if _key_ids(text) <= {cipher.keys.current.id}:
            return None
    except ValueError:
        raise OAuthStoreError.of_record(name, f"The record {name} is damaged.") from None
    if name.startswith("as-"):
        return write_session(read_session(text, name, cipher), cipher)
    return write_grant(read_grant(text, name, cipher), cipher)


def _key_ids(text: str | bytes) -> set[str]:
    found: set[str] = set()

    def notice(value: JsonObject) -> JsonObject:
        if "keyId" in value and "ciphertext" in value:
            found.add(str(value["keyId"]))
        return value

    json.loads(text, object_hook=notice)
    return found


def _document(kind: str, name: str, spec: JsonObject) -> str:
    spec["oauthAppRef"] = {"kind": "OAuthApp", "name": spec.pop("oauthApp")}
    head = {"v": WIRE_VERSION, "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
    return json.dumps({**head, "spec": spec}, separators=(",", ":"))


def _read(text: str | bytes, kind: str, name: str, build: Callable[[JsonObject], _AnyRecord]) -> _AnyRecord:
    """Read a document; ``build`` makes the record from its ``spec``, with the app's name as ``oauthApp``."""
    try:
        document = json.loads(text)
        found, version = (document["kind"], document["metadata"]["name"]), document["v"]
        if version > WIRE_VERSION:
            raise OAuthStoreError(
                f"{kind} {name} is of version {version}, newer than {WIRE_VERSION}.",
                suggestion="Upgrade goondan-workers here.",
            )
        if found != (kind, name):
            message = f"{kind} {name} is damaged: it says that it is {found[0]} {found[1]}."
            raise OAuthStoreError.of_record(name, message)
        spec = document["spec"]
        return build({**spec, "oauthApp": spec["oauthAppRef"]["name"]})
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        # the message repeats neither the text nor pydantic's message, which may contain it
        message = f"{kind} {name} is damaged: {type(error).__name__}."
        raise OAuthStoreError.of_record(name, message) from None


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()
