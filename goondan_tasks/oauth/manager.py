"""The one door to tokens (000 §12.5.1, 002 §8.1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError, OAuthStoreError
from goondan_tasks.oauth.records import OAuthGrant, Resume
from goondan_tasks.oauth.refreshing import Refreshing
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.token_request import MIN_TTL_SECONDS, TokenRequest, parse_request
from goondan_tasks.oauth.token_result import (
    AuthorizationRequired,
    OAuthTokenResult,
    TokenError,
    TokenFault,
    TokenReady,
)
from goondan_tasks.oauth.token_validity import allows, is_due, outlives
from goondan_tasks.run import Clock

#: asks a subject for consent: app, subject, scopes, and who goes on after it
Begin = Callable[[OAuthApp, str, tuple[str, ...], Resume], AuthorizationRequired]


@dataclass(frozen=True, slots=True)
class OAuthManager:
    """Hands out tokens; safe in threads, its methods block."""

    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    refreshing: Refreshing
    begin: Begin
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
        """Return a token for the OAuthApp and the subject of ``auth``, or what keeps it from being there.

        ``scopes`` are some of the app's, by default all. A token that lives shorter than
        ``min_ttl_seconds`` is refreshed; where none lives that long, one in the second half of its life.
        Without ``resume`` nobody could go on after a consent, so nobody is asked for one. What is wrong is a
        TokenError, and no exception.
        """
        try:
            request = parse_request(
                self.apps, oauth_app_ref, scopes=scopes, min_ttl_seconds=min_ttl_seconds, auth=auth
            )
            return self._answer(request, resume)
        except (OAuthError, OAuthStoreError) as error:
            return TokenError(error=TokenFault(code=error.code, message=error.message))

    def _answer(self, request: TokenRequest, resume: Resume | None) -> OAuthTokenResult:
        grant = self.store.grant(request.app.name, request.subject)
        if (
            grant is not None
            and allows(grant, request.scopes)
            and is_due(grant, self.clock(), min_ttl_ms=request.min_ttl_ms)
        ):
            grant = self.refreshing.refresh(request.app, grant)
        if grant is not None and allows(grant, request.scopes) and outlives(grant, self.clock()):
            return _ready(grant)
        if resume is None:
            raise _needs_consent(request, grant)
        return self.begin(request.app, request.subject, request.scopes, resume)


def _ready(grant: OAuthGrant) -> TokenReady:
    return TokenReady(
        access_token=grant.token.access_token.get_secret_value(),
        token_type=grant.token.token_type,
        expires_at=grant.token.expires_at,
        scopes=grant.scopes_granted,
    )


def _needs_consent(request: TokenRequest, grant: OAuthGrant | None) -> OAuthError:
    is_revoked = grant is not None and grant.revoked
    return OAuthError(
        f"'{request.subject}' has to consent to OAuthApp '{request.app.name}' first.",
        code="tokenRevoked" if is_revoked else "configurationError",
        suggestion=f"Run `goondan oauth login {request.app.name} --subject …`.",
    )
