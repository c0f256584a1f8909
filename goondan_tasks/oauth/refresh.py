"""One refresh at a time per (OAuthApp, subject), in all processes (000 §12.5.1 rule 6, §12.5.3 rule 3)."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pydantic import SecretStr
from redis.exceptions import RedisError

from goondan_tasks.messages import Clock, iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError, ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.store import ExtendLock, OAuthStore

if TYPE_CHECKING:  # it needs the extra ``oauth``
    from goondan_tasks.oauth.provider import Provider

#: limit of the request: hanging up loses the grant if the provider has rotated the token by then
REFRESH_SECONDS = 60.0
#: how long to try to store the provider's answer
STORE_SECONDS = 60.0
#: limit from the request until the answer is stored, with a margin for the last attempt
LONGEST_SECONDS = REFRESH_SECONDS + STORE_SECONDS + 10.0
#: How long a refresh token whose answer is unknown is not sent again. A provider that rotates takes a token
#: that comes twice for stolen, and revokes the whole grant (RFC 9700 §4.14.2). So a frozen process has this
#: long to go on, and after one that was killed no process refreshes for as long. It is less than the five
#: minutes before its expiry at which a token is refreshed by default: meanwhile the old one is valid.
IN_DOUBT_SECONDS = 240.0
#: errors that say that a refresh token is no longer valid: RFC 6749 §5.2, GitHub, Slack
_REFRESH_TOKEN_GONE = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token"})
#: how long to wait for another process's refresh while the old token is valid
_SHORT_WAIT_SECONDS = 5.0
_STORE_RETRY_SECONDS = 0.5


class RefreshesInFlight:
    """Counts this process's refreshes from the request until the answer is stored; thread-safe.

    They must not be cut off: an answer is the only copy of a refresh token.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a refresh for the length of a ``with`` block.

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
        """Let no more refreshes begin; return whether none is in flight any more."""
        with self._lock:
            self._is_closed = True
            return self._count == 0


@dataclass(frozen=True, slots=True)
class Refresher:
    """Refreshes grants."""

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
        # the flight is left last: a refresh counts until its lock is released
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
                # keeps a newer grant; there is no other copy of a new refresh token
                self._insist(partial(self.store.replace_grant, newer, generation=grant.generation))
                return self.store.grant(grant.oauth_app, grant.subject)
        return self.refresh(app, grant)

    def _request(
        self, app: OAuthApp, grant: OAuthGrant, refresh_token: SecretStr, extend: ExtendLock | None
    ) -> OAuthGrant | None:
        """Return what the provider makes of a grant.

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
        """Write to the store, and try again while Redis is away.

        Raises:
            RedisError: it was away for ``store_seconds``.
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
