"""From a provider's token to a grant: whose it is, what it allows, and that it is stored once.

Both flows end here (000 §12.5.6 r5 to r7, §12.5.7).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from goondan_tasks.messages import iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import (
    ConsentError,
    OAuthError,
    OAuthStoreError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import AuthSession, OAuthGrant, OAuthToken
from goondan_tasks.oauth.resume import Resumption
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.subjects import is_subject, needs_claims
from goondan_tasks.oauth.token_reply import TokenReply, provider_data
from goondan_tasks.run import Clock


@dataclass(frozen=True, slots=True)
class Granting:
    """Lets sessions in, one at a time, and makes grants of those."""

    store: OAuthStore
    provider: Provider
    resumption: Resumption
    clock: Clock

    def admit(self, session: AuthSession) -> AuthSession | None:
        """Let a pending session in, and return it with all who asked for it; ``None`` if another has been."""
        if not self.store.advance(session.id, status="pending", to="exchanging"):
            return None
        return self.store.session(session.id)

    def grant(self, app: OAuthApp, session: AuthSession, reply: TokenReply) -> OAuthGrant:
        """Store the grant, end the session, and resume whoever asked for it.

        Raises:
            ConsentError: ``subject_mismatch``, ``scope_not_granted``, ``token_exchange_failed``, or
                ``session_expired`` meanwhile.
        """
        self._check_subject(app, session, reply)
        grant = new_grant(session, reply, self.clock())
        missing = sorted(set(session.requested_scopes) - set(grant.scopes_granted))
        if missing:
            raise ConsentError(f"Not granted: {', '.join(missing)}.", code="scope_not_granted")
        if not self.store.complete(session, grant):
            raise ConsentError("The session has ended meanwhile.", code="session_expired")
        self.resumption.tell(session, grant)
        return grant

    @contextmanager
    def ending(self, session: AuthSession) -> Iterator[None]:
        """Let a session that is ``exchanging`` be failed by whatever keeps it from its grant."""
        try:
            yield
        except (OAuthError, OAuthStoreError) as error:
            self.store.advance(session.id, status="exchanging", to="failed", reason=error.code)
            raise

    def _check_subject(self, app: OAuthApp, session: AuthSession, reply: TokenReply) -> None:
        if not needs_claims(app):
            return
        try:
            claims = {**reply.details, **self.provider.claims(app, reply)}
        except ProviderRefusedError as error:
            raise ConsentError(error.message, code="subject_mismatch") from error
        except ProviderUnavailableError as error:
            raise ConsentError(error.message, code="token_exchange_failed") from error
        if not is_subject(app, session.subject, claims):
            raise ConsentError("Somebody else has consented.", code="subject_mismatch")


def new_grant(session: AuthSession, reply: TokenReply, now_ms: float) -> OAuthGrant:
    """Return the grant that a token makes of a session."""
    lifetime = reply.expires_in
    return OAuthGrant(
        oauth_app=session.oauth_app,
        provider=session.provider,
        subject=session.subject,
        flow=session.flow,
        # a provider that names none has granted those that were asked for (RFC 6749 §5.1)
        scopes_granted=reply.scopes or session.requested_scopes,
        token=OAuthToken(
            token_type=reply.token_type,
            access_token=reply.access_token,
            refresh_token=reply.refresh_token,
            expires_at=None if lifetime is None else iso_time(now_ms + lifetime * 1000),
        ),
        created_at=iso_time(now_ms),
        updated_at=iso_time(now_ms),
        provider_data=provider_data(reply),
    )
