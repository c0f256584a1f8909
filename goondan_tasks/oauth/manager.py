"""The source of tokens: its store, requests for tokens, and refreshes (000 §12.5.1 to §12.5.3, 002 §8.1).

One refresh runs at a time per (OAuthApp, subject), across all processes (000 §12.5.1 rule 6, §12.5.3 rule 3).
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import structlog
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.oauth_app_spec import scopes_beyond
from goondan_tasks.contract.errors import OAuthStoreError
from goondan_tasks.contract.messages import Clock, JsonObject, WireModel, iso_time, wall_clock
from goondan_tasks.contract.wording import hint, member, shown
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.crypto import Cipher, Keyring
from goondan_tasks.oauth.file_store import FileStore, KeyFile
from goondan_tasks.oauth.records import (
    GrantNotFoundError,
    OAuthError,
    OAuthGrant,
    ProviderRefusedError,
    ProviderUnavailableError,
    Resume,
)
from goondan_tasks.oauth.redis_store import RedisClock, RedisStore
from goondan_tasks.oauth.store import ExtendLock, OAuthStore, leave_out

if TYPE_CHECKING:  # these need the extra ``oauth``
    from goondan_tasks.oauth.consent import Consent
    from goondan_tasks.oauth.provider import Provider

_log = structlog.get_logger(__name__)

#: a changed key affects all grants, so a sample is enough
_CHECKED_GRANTS = 500
#: how long a token must still be valid by default (000 §12.5)
MIN_TTL_SECONDS = 300
#: limit of the request; giving up loses the grant if the provider has already rotated the token
REFRESH_SECONDS = 60.0
#: how long to try to store the provider's answer
STORE_SECONDS = 60.0
#: limit from the request until the answer is stored, with time for the last attempt
LONGEST_SECONDS = REFRESH_SECONDS + STORE_SECONDS + 10.0
#: How long a refresh token is not sent again if the answer to it is unknown. A provider that rotates tokens
#: takes one that it receives twice for stolen, and revokes the whole grant (RFC 9700 §4.14.2). So a frozen
#: process has this long to continue, and after one was killed no process refreshes for as long. It is less
#: than the five minutes before expiry at which a token is refreshed by default, so the old one stays valid.
IN_DOUBT_SECONDS = 240.0
#: errors of a refresh token that is no longer valid: RFC 6749 §5.2, GitHub, Slack
_REFRESH_TOKEN_GONE = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token"})
#: how long to wait for another process's refresh while the old token is still valid
_SHORT_WAIT_SECONDS = 5.0
_STORE_RETRY_SECONDS = 0.5


def open_keys(settings: Settings) -> Keyring:
    """Return the keys of ``GOONDAN_OAUTH_KEY``, else those of the key file, which is created if missing.

    Raises:
        ConfigError: a key is malformed.
        OAuthStoreError: other users may read the file.
    """
    if settings.oauth_key is not None:
        return Keyring.parse(settings.oauth_key)
    return KeyFile(settings.oauth_key_path)


def require_keys(store: OAuthStore, keys: Keyring) -> None:
    """Compare the keys with those of the grants, so that a changed key is reported at startup.

    Raises:
        OAuthStoreError: there are grants, and none of the checked ones can be read.
    """
    grants = [grant.key_ids for grant in itertools.islice(store.grants(leave_out), _CHECKED_GRANTS)]
    missing = sorted({key_id for ids in grants for key_id in ids if keys.find(key_id) is None})
    if not missing:
        return
    message = f"Grants are encrypted with {', '.join(missing)}; this process has {keys.current.id}."
    what_to_do = (
        "Set GOONDAN_OAUTH_KEY to the key with which they were written, or restore its key file. If it is "
        "lost, remove the grants that `goondan oauth grants` lists with `goondan oauth revoke`."
    )
    if all(set(ids) & set(missing) for ids in grants):
        raise OAuthStoreError(message, suggestion=what_to_do)
    _log.error("oauth.key_missing", error=message, what_to_do=what_to_do)


def open_store(settings: Settings, redis: Redis, keys: Keyring | None = None) -> OAuthStore:
    """Return the store that ``GOONDAN_OAUTH_STORE`` names, by default with the keys of :func:`open_keys`.

    Raises as :func:`open_keys` does.
    """
    cipher = Cipher(keys or open_keys(settings))
    if settings.oauth_store == "file":
        return FileStore(settings.state_root_path / "oauth", cipher, wall_clock)
    return RedisStore(redis, Keys(settings.namespace), cipher)


def store_clock(settings: Settings, redis: Redis) -> Clock:
    """Return the clock by which the store's records expire: this machine's, or that of Redis."""
    return wall_clock if settings.oauth_store == "file" else RedisClock(redis)


class RefreshesInFlight:
    """Counts this process's refreshes from the request until the answer is stored; thread-safe.

    They must not be interrupted: the answer is the only copy of a refresh token.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a refresh during a ``with`` block.

        Raises:
            OAuthError: the process is stopping.
        """
        with self._lock:
            if self._is_closed:
                raise OAuthError("This process is stopping, and begins no refresh.")
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1

    def close(self) -> bool:
        """Refuse further refreshes; return whether none is in flight."""
        with self._lock:
            self._is_closed = True
            return self._count == 0


@dataclass(frozen=True, slots=True)
class Refresher:
    store: OAuthStore
    provider: "Provider"
    clock: Clock
    #: how long to wait for another process's refresh when the token has expired
    wait_seconds: float = REFRESH_SECONDS + 5
    in_doubt_seconds: float = IN_DOUBT_SECONDS
    store_seconds: float = STORE_SECONDS
    in_flight: RefreshesInFlight = field(default_factory=RefreshesInFlight)

    def refresh(self, app: OAuthApp, stale: OAuthGrant) -> OAuthGrant | None:
        """Return the grant after a refresh by this or another process; it may be revoked by now, or gone.

        If the refresh fails while the token is still valid, the grant stays as it is.

        Raises:
            OAuthError: ``refreshFailed``: the token has expired; or the app cannot be used.
            OAuthStoreError: the grant cannot be read.
        """
        is_valid = stale.outlives(self.clock())
        patience = min(self.wait_seconds, _SHORT_WAIT_SECONDS) if is_valid else self.wait_seconds
        # ``flight`` is closed last: a refresh counts until its lock is released
        with (
            contextlib.ExitStack() as flight,
            self.store.lock(stale.oauth_app, stale.subject, wait_seconds=patience) as extend,
        ):
            grant = self.store.grant(stale.oauth_app, stale.subject)
            if grant is None or grant.revoked or grant.generation != stale.generation:
                return grant
            if grant.token.refresh_token is None:
                return grant
            try:
                flight.enter_context(self.in_flight.one())
                newer = self._request(app, grant, grant.token.refresh_token, extend)
            except OAuthError as error:
                if grant.outlives(self.clock()):
                    return grant
                raise OAuthError(
                    f"The token has expired, and was not refreshed: {error.message}",
                    code="refreshFailed",
                    suggestion="Try again later; if it persists, revoke the grant and ask for a new consent.",
                ) from error
            if newer is not None:
                # this keeps a newer grant; there is no other copy of the new refresh token
                self._insist(partial(self.store.replace_grant, newer, generation=grant.generation))
                return self.store.grant(grant.oauth_app, grant.subject)
        return self.refresh(app, grant)

    def _request(
        self, app: OAuthApp, grant: OAuthGrant, refresh_token: SecretStr, extend: ExtendLock | None
    ) -> OAuthGrant | None:
        """Return the grant as the provider's answer changes it: refreshed, or revoked.

        ``None`` if the provider no longer knows the token, and this process was frozen for so long that
        another one may have used it.

        Raises:
            OAuthError: the outcome is unknown, or the provider refused for another reason.
        """
        if self.store.is_doubted(grant):
            raise OAuthError("The answer to its last refresh was lost; it is not repeated for a few minutes.")
        if extend is None or not extend(self.in_doubt_seconds):
            raise OAuthError("Another process is refreshing it, and has not ended yet.")
        begun = time.monotonic()
        try:
            return self.provider.refresh(app, refresh_token).refreshed(grant, self.clock())
        except ProviderRefusedError as error:
            if error.error not in _REFRESH_TOKEN_GONE:
                raise
            if not extend(self.in_doubt_seconds):
                return None
            return grant.model_copy(update={"revoked": True, "updated_at": iso_time(self.clock())})
        except ProviderUnavailableError as error:
            left = self.in_doubt_seconds - (time.monotonic() - begun)
            if error.is_in_doubt and left > 0:
                self._insist(partial(self.store.doubt, grant, seconds=left))
            raise

    def _insist(self, write: Callable[[], object]) -> None:
        """Write to the store; retry while Redis is unreachable.

        Raises:
            RedisError: it was unreachable for ``store_seconds``.
        """
        end = time.monotonic() + self.store_seconds
        while True:
            try:
                write()
            except RedisError:
                if time.monotonic() >= end:
                    raise
                time.sleep(_STORE_RETRY_SECONDS)
            else:
                return


class TokenReady(WireModel):
    """A token; ``access_token`` is plain text."""

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
    """A user must consent first, at ``authorization_url``."""

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
    """There is no token, and a consent would not help."""

    status: Literal["error"] = "error"
    error: TokenFault


OAuthTokenResult = TokenReady | AuthorizationRequired | TokenError


@dataclass(frozen=True, slots=True)
class TokenRequest:
    app: OAuthApp
    subject: str
    #: the requested scopes, by default the app's
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

        ``scopes`` are some of the app's, by default all. A token that expires within ``min_ttl_seconds`` is
        refreshed; if the provider's tokens never live that long, in the second half of its life. Without
        ``resume`` no user is asked for consent, because no agent could continue after it. Errors are returned
        as a TokenError.
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
    """Return the requested scopes, by default those of the app; an empty list requests none."""
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
    """Revoke a subject's grant; return whether the provider of ``app`` has revoked the tokens.

    The grant is revoked in the store first, so that no token stays in use if the provider cannot be reached.

    Raises:
        GrantNotFoundError: there is none.
        OAuthStoreError: the grant cannot be read.
    """
    while True:
        grant = store.grant(oauth_app, subject)
        if grant is None:
            raise GrantNotFoundError(f"'{subject}' has no grant of '{oauth_app}'.")
        revoked = grant.model_copy(update={"revoked": True, "updated_at": iso_time(clock())})
        if store.replace_grant(revoked, generation=grant.generation):
            break
    if app is None:
        return False
    is_revoked = True
    # the refresh token first: with it a provider revokes the access token (RFC 7009 §2.1)
    for token, kind in (
        (grant.token.refresh_token, "refresh_token"),
        (grant.token.access_token, "access_token"),
    ):
        try:
            is_revoked &= token is None or provider.revoke(app, token, hint=kind)
        except OAuthError:  # a refusal, no answer, or the client's secret is missing here
            is_revoked = False
    return is_revoked
