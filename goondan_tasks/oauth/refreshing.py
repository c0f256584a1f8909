"""One refresh per (OAuthApp, subject), whoever asks and wherever (000 §12.5.1 rule 6, §12.5.3 rule 3)."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pydantic import SecretStr
from redis.exceptions import RedisError

from goondan_tasks.messages import iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError, ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.refreshes_in_flight import REFRESH_SECONDS, STORE_SECONDS, RefreshesInFlight
from goondan_tasks.oauth.store import Keep, OAuthStore
from goondan_tasks.oauth.token_reply import TokenReply, without_secrets
from goondan_tasks.oauth.token_validity import outlives
from goondan_tasks.run import Clock

#: that a refresh token is of no use any more: RFC 6749 §5.2, and in the words of GitHub and Slack
_REFRESH_TOKEN_GONE = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token"})
#: How long nobody sends a refresh token again whose answer is not known. A provider that rotates
#: takes a token that comes twice for stolen, and revokes the whole grant (RFC 9700 §4.14.2), so a frozen
#: process has this long to go on; after one that was killed nobody refreshes for as long. It is less than the
#: five minutes before its expiry at which a token is refreshed by default: meanwhile the old one is valid.
IN_DOUBT_SECONDS = 240.0
#: how long somebody waits for another one's refresh whose own token is still valid
_SHORT_WAIT_SECONDS = 5.0
_STORE_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Refreshing:
    """Refreshes grants."""

    store: OAuthStore
    provider: Provider
    clock: Clock
    #: how long to wait for another one's refresh when the token has expired
    wait_seconds: float = REFRESH_SECONDS + 5
    in_doubt_seconds: float = IN_DOUBT_SECONDS
    #: how long to try to store what the provider has answered
    store_seconds: float = STORE_SECONDS
    #: of this process
    in_flight: RefreshesInFlight = field(default_factory=RefreshesInFlight)

    def refresh(self, app: OAuthApp, stale: OAuthGrant) -> OAuthGrant | None:
        """Return the grant after a refresh, by us or by somebody else; it may be revoked by now, or gone.

        If there can be none, and the token is still valid, the grant stays as it is.

        Raises:
            OAuthError: ``refreshFailed``, or why the app cannot be used; the token is not valid any more.
            OAuthStoreError: the grant cannot be read.
        """
        is_valid = outlives(stale, self.clock())
        patience = min(self.wait_seconds, _SHORT_WAIT_SECONDS) if is_valid else self.wait_seconds
        # entered last, left last: what has been begun counts until its lock is released, too
        with (
            contextlib.ExitStack() as flight,
            self.store.lock(stale.oauth_app, stale.subject, wait_seconds=patience) as keep,
        ):
            grant = self.store.grant(stale.oauth_app, stale.subject)
            if grant is None or grant.revoked or grant.generation != stale.generation:
                return grant
            if grant.token.refresh_token is None:
                return grant
            try:
                flight.enter_context(self.in_flight.one())
                newer = self._newer(app, grant, grant.token.refresh_token, keep)
            except OAuthError as error:
                return self._kept(grant, error)
            if newer is not None:
                return self._replaced(grant, newer)
        return self.refresh(app, grant)

    def _newer(
        self, app: OAuthApp, grant: OAuthGrant, refresh_token: SecretStr, keep: Keep | None
    ) -> OAuthGrant | None:
        """Return what the provider makes of a grant.

        ``None`` if the provider knows the token no longer, and this process was frozen for so long that
        another one may have used it.

        Raises:
            OAuthError: nobody knows, or the provider refused for another reason.
        """
        if self.store.is_doubted(grant):
            raise OAuthError("The answer to its last refresh was lost; it is not repeated for a few minutes.")
        if keep is None or not keep(self.in_doubt_seconds):
            raise OAuthError("Another process is refreshing it, and has not ended yet.")
        begun = time.monotonic()
        try:
            reply = self.provider.refresh(app, refresh_token)
        except ProviderRefusedError as error:
            if error.error not in _REFRESH_TOKEN_GONE:
                raise
            return grant.model_copy(update={"revoked": True}) if keep(self.in_doubt_seconds) else None
        except ProviderUnavailableError as error:
            left = self.in_doubt_seconds - (time.monotonic() - begun)
            if error.is_in_doubt and left > 0:
                self._insist(partial(self.store.doubt, grant, seconds=left))
            raise
        return _with_token(grant, reply, self.clock())

    def _replaced(self, grant: OAuthGrant, newer: OAuthGrant) -> OAuthGrant | None:
        """Store a grant in place of the one that was used, unless another one stands there by now."""
        stamped = newer.model_copy(update={"updated_at": iso_time(self.clock())})
        # there is no other copy of a new refresh token
        self._insist(partial(self.store.replace_grant, stamped, generation=grant.generation))
        return self.store.grant(grant.oauth_app, grant.subject)

    def _insist(self, write: Callable[[], object]) -> None:
        """Write to the store, also if Redis is away for a while.

        Raises:
            RedisError: it was away for too long.
        """
        end = time.monotonic() + self.store_seconds
        while True:
            try:
                write()
            except RedisError:
                if time.monotonic() >= end:
                    raise
                time.sleep(_STORE_AGAIN_SECONDS)
            else:
                return

    def _kept(self, grant: OAuthGrant, error: OAuthError) -> OAuthGrant:
        if outlives(grant, self.clock()):
            return grant
        raise OAuthError(
            f"The token has expired, and was not refreshed: {error.message}",
            code="refreshFailed",
            suggestion="Try again later; if it stays so, revoke the grant and have the user consent again.",
        ) from error


def _with_token(grant: OAuthGrant, reply: TokenReply, now: float) -> OAuthGrant:
    lifetime = reply.expires_in
    token = grant.token.model_copy(
        update={
            "access_token": reply.access_token,
            "token_type": reply.token_type,
            # RFC 6749 §6: without a new one the old one goes on
            "refresh_token": reply.refresh_token or grant.token.refresh_token,
            "expires_at": None if lifetime is None else iso_time(now + lifetime * 1000),
        }
    )
    return grant.model_copy(
        update={
            "token": token,
            "scopes_granted": reply.scopes or grant.scopes_granted,
            # what was stored by an earlier version may hold more than is kept by now
            "provider_data": without_secrets(grant.provider_data),
        }
    )
