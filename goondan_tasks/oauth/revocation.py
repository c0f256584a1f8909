"""Taking a grant back: at the provider, if it can be told, and here."""

from dataclasses import dataclass

from pydantic import SecretStr

from goondan_tasks.messages import iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.run import Clock


@dataclass(frozen=True, slots=True)
class Revocation:
    """Revokes grants."""

    store: OAuthStore
    provider: Provider
    clock: Clock

    def revoke(self, oauth_app: str, subject: str, app: OAuthApp | None) -> bool:
        """Revoke a subject's grant; say whether the provider was told. ``app`` is where it is told.

        Here it is revoked first: a provider that cannot be reached keeps no token in use.

        Raises:
            OAuthError: ``grant_not_found``.
            OAuthStoreError: the grant cannot be read.
        """
        grant = self._revoked_here(oauth_app, subject)
        return app is not None and self._tell(app, grant)

    def _revoked_here(self, oauth_app: str, subject: str) -> OAuthGrant:
        while True:
            grant = self.store.grant(oauth_app, subject)
            if grant is None:
                raise OAuthError(
                    f"'{subject}' has no grant of '{oauth_app}'.",
                    code="grant_not_found",
                    suggestion="`goondan oauth grants` lists them all.",
                )
            revoked = {"revoked": True, "updated_at": iso_time(self.clock())}
            if self.store.replace_grant(grant.model_copy(update=revoked), generation=grant.generation):
                return grant

    def _tell(self, app: OAuthApp, grant: OAuthGrant) -> bool:
        """Tell the provider: the refresh token first, with which it forgets the rest (RFC 7009 §2.1)."""
        token = grant.token
        knows_refresh = token.refresh_token is None or self._told(app, token.refresh_token, "refresh_token")
        return self._told(app, token.access_token, "access_token") and knows_refresh

    def _told(self, app: OAuthApp, token: SecretStr, hint: str) -> bool:
        try:
            return self.provider.revoke(app, token, hint=hint)
        except OAuthError:  # it says no or nothing, or this process does not know the client's secret
            return False
