"""Requests for tokens, and what they are answered with (000 §12.5.1, §12.5.2, 002 §8.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.resources import scopes_beyond
from goondan_tasks.errors import OAuthStoreError
from goondan_tasks.messages import Clock, JsonObject, WireModel, iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.oauth.records import Resume
from goondan_tasks.oauth.refresh import Refresher
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.schema import member
from goondan_tasks.wording import hint, shown

if TYPE_CHECKING:  # they need the extra ``oauth``
    from goondan_tasks.oauth.consent import Consent
    from goondan_tasks.oauth.provider import Provider

#: how long a token must still be valid by default (000 §12.5)
MIN_TTL_SECONDS = 300


class TokenReady(WireModel):
    """A token. ``access_token`` is plain text: it is what the tool asked for."""

    status: Literal["ready"] = "ready"
    access_token: str
    token_type: str
    expires_at: str | None = None
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        """Keep the token out of logs and tracebacks."""
        return f"TokenReady({self.token_type}, expires_at={self.expires_at}, scopes={list(self.scopes)})"

    __str__ = __repr__


class AuthorizationRequired(WireModel):
    """A user has to consent first, at ``authorization_url``."""

    status: Literal["authorization_required"] = "authorization_required"
    auth_session_id: str
    authorization_url: str
    expires_at: str
    message: str
    #: of the device code flow: ``{verificationUri, userCode, expiresIn, interval}``
    device_code: JsonObject | None = None


class TokenFault(WireModel):
    """Why there is no token; ``code`` in the documents' own spelling."""

    code: str
    message: str


class TokenError(WireModel):
    """There is no token, and asking a user would not help."""

    status: Literal["error"] = "error"
    error: TokenFault


OAuthTokenResult = TokenReady | AuthorizationRequired | TokenError


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A valid request for a token."""

    app: OAuthApp
    subject: str
    #: the named ones, else the app's
    scopes: tuple[str, ...]
    min_ttl_ms: float


@dataclass(frozen=True, slots=True)
class OAuthManager:
    """The only source of tokens; thread-safe, its methods block."""

    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    refresher: Refresher
    consent: "Consent"
    clock: Clock

    def get_access_token(
        self,
        oauth_app_ref: Any,
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = MIN_TTL_SECONDS,
        *,
        auth: JsonObject | None,
        resume: Resume | None,
    ) -> OAuthTokenResult:
        """Return a token for the OAuthApp and the subject of ``auth``, or the reason why there is none.

        ``scopes`` are some of the app's, by default all. A token that lives shorter than ``min_ttl_seconds``
        is refreshed; where none lives that long, one in the second half of its life. Without ``resume`` no
        user is asked for consent, as no agent could go on after it. Errors are returned as a TokenError.
        """
        try:
            request = parse_request(
                self.apps, oauth_app_ref, scopes=scopes, min_ttl_seconds=min_ttl_seconds, auth=auth
            )
            return self._answer(request, resume)
        except (OAuthError, OAuthStoreError) as error:
            return TokenError(error=TokenFault(code=error.code, message=error.message))

    def _answer(self, request: TokenRequest, resume: Resume | None) -> OAuthTokenResult:
        app, subject, scopes = request.app, request.subject, request.scopes
        grant = self.store.grant(app.name, subject)
        if grant and grant.allows(scopes) and grant.is_due(self.clock(), min_ttl_ms=request.min_ttl_ms):
            grant = self.refresher.refresh(app, grant)
        if grant and grant.allows(scopes) and grant.outlives(self.clock()):
            return TokenReady(
                access_token=grant.token.access_token.get_secret_value(),
                token_type=grant.token.token_type,
                expires_at=grant.token.expires_at,
                scopes=grant.scopes_granted,
            )
        if resume is None:
            raise OAuthError(
                f"'{subject}' has to consent to OAuthApp '{app.name}' first.",
                code="tokenRevoked" if grant and grant.revoked else "configurationError",
                suggestion=f"Run `goondan oauth login {app.name} --subject …`.",
            )
        return self.consent.begin(app, subject, scopes, resume)


def parse_request(
    apps: Mapping[str, OAuthApp],
    oauth_app_ref: Any,
    *,
    scopes: Any,
    min_ttl_seconds: Any,
    auth: JsonObject | None,
) -> TokenRequest:
    """Read a request (000 §12.5.1 rules 1 and 2).

    Raises:
        OAuthError: ``oauthAppNotFound``, ``subjectUnavailable``, ``scopeNotAllowed``, or
            ``configurationError`` for a malformed one.
    """
    app = _app(apps, oauth_app_ref)
    subject = member(member(auth, "subjects"), app.subject_mode)
    if not isinstance(subject, str) or not subject:
        raise OAuthError(
            f"turn.auth.subjects.{app.subject_mode} is missing, so the owner of the token is unknown.",
            code="subjectUnavailable",
            suggestion="Submit the call with auth: {subjects: {global: …, user: …}}.",
        )
    return TokenRequest(app, subject, _scopes(app, scopes), _milliseconds(min_ttl_seconds))


def _app(apps: Mapping[str, OAuthApp], raw: Any) -> OAuthApp:
    try:
        ref = parse_ref(raw)
    except FieldError as error:
        raise OAuthError(f"oauthAppRef: {error.message}.", suggestion=error.suggestion) from error
    app = apps.get(ref.name) if ref.kind == "OAuthApp" else None
    if app is None:
        suggestion = hint(ref.name, apps, "Declare an OAuthApp.")
        raise OAuthError(f"The bundle has no '{ref}'.", code="oauthAppNotFound", suggestion=suggestion)
    return app


def _scopes(app: OAuthApp, scopes: Any) -> tuple[str, ...]:
    """Return the requested scopes: by default those of the app; an empty list asks for none."""
    if scopes is None:
        return app.scopes
    if not isinstance(scopes, list | tuple) or not all(isinstance(scope, str) for scope in scopes):
        raise OAuthError(f"scopes must be a list of strings, not {shown(scopes)}.", code="scopeNotAllowed")
    beyond = scopes_beyond(scopes, app.scopes)
    if beyond:
        raise OAuthError(
            f"OAuthApp '{app.name}' does not list the scope '{beyond[0][:80]}'.",
            code="scopeNotAllowed",
            suggestion=hint(beyond[0], app.scopes),
        )
    return tuple(dict.fromkeys(scopes))


def _milliseconds(seconds: Any) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds < 0:
        raise OAuthError(f"minTtlSeconds must be a number of seconds, not {shown(seconds)}.")
    return float(seconds) * 1000


def revoke_grant(
    store: OAuthStore,
    provider: "Provider",
    clock: Clock,
    *,
    oauth_app: str,
    subject: str,
    app: OAuthApp | None,
) -> bool:
    """Revoke a subject's grant; return whether its provider, reached as ``app``, has revoked the tokens.

    The grant is revoked in the store first, so that no token stays in use if the provider cannot be reached.

    Raises:
        OAuthError: ``grant_not_found``.
        OAuthStoreError: the grant cannot be read.
    """
    while True:
        grant = store.grant(oauth_app, subject)
        if grant is None:
            raise OAuthError(
                f"'{subject}' has no grant of '{oauth_app}'.",
                code="grant_not_found",
                suggestion="`goondan oauth grants` lists them all.",
            )
        revoked = grant.model_copy(update={"revoked": True, "updated_at": iso_time(clock())})
        if store.replace_grant(revoked, generation=grant.generation):
            break
    if app is None:
        return False
    is_told = True
    # the refresh token first: with it a provider revokes the rest (RFC 7009 §2.1)
    for token, kind in (
        (grant.token.refresh_token, "refresh_token"),
        (grant.token.access_token, "access_token"),
    ):
        try:
            is_told &= token is None or provider.revoke(app, token, hint=kind)
        except OAuthError:  # a refusal, no answer, or the client's secret is missing here
            is_told = False
    return is_told
