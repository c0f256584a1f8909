"""The provider sends a user back: from the redirect's query to a grant, or a refusal (000 §12.5.6)."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.granting import Granting
from goondan_tasks.oauth.oauth_errors import (
    ConsentError,
    OAuthError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import AuthSession, OAuthGrant
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.token_reply import TokenReply, error_code

_STATE = re.compile(r"(as-[0-9a-f]{24})\.[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Callback:
    """What stands behind the redirect URI of every OAuthApp."""

    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    provider: Provider
    granting: Granting
    #: what stands before the paths of apps without ``redirect.baseUrl``
    public_url: str | None

    @property
    def paths(self) -> frozenset[str]:
        """Where redirects may arrive."""
        return frozenset(path for app in self.apps.values() for path in app.callback_paths(self.public_url))

    def receive(self, query: Mapping[str, str], path: str) -> OAuthGrant:
        """Deal with a redirect that arrived at ``path``; of a session only one is let in.

        Raises:
            ConsentError: ``invalid_state``, ``session_not_found``, ``session_already_used``,
                ``session_expired``, ``subject_mismatch``, ``scope_not_granted``, ``token_exchange_failed``,
                or the provider's own, such as ``access_denied``.
            OAuthError: the app is not in the bundle, or lacks something (``oauthAppNotFound``,
                ``configurationError``).
            OAuthStoreError: the session or the grant cannot be read.
        """
        session = self._session(query.get("state", ""))
        app = self._app(session)
        self._require_place(app, path)
        session = self._let_in(session)
        with self.granting.ending(session):
            _require_consent(query)
            return self.granting.grant(app, session, self._exchange(app, session, query["code"]))

    def _session(self, state: str) -> AuthSession:
        """Return the session that a state names; only its whole state opens it, compared in constant time."""
        match = _STATE.fullmatch(state)
        if match is None:
            raise ConsentError("The link is not one of ours.", code="invalid_state")
        session = self.store.session(match[1])
        if session is None or session.state is None:
            raise ConsentError("The link is not known, or no longer.", code="session_not_found")
        if not hmac.compare_digest(session.state.get_secret_value(), state):
            raise ConsentError("The link is not the one that was given out.", code="invalid_state")
        return session

    def _require_place(self, app: OAuthApp, path: str) -> None:
        """Refuse what came by way of another app: its provider may have mixed them up (RFC 9700 §4.4)."""
        if path not in app.callback_paths(self.public_url):
            raise ConsentError("The link belongs elsewhere.", code="invalid_state")

    def _let_in(self, session: AuthSession) -> AuthSession:
        """Let one callback of a session pass: no other finds it pending (000 §12.5.6 r3)."""
        if session.status == "expired":
            raise ConsentError("The link has expired.", code="session_expired")
        admitted = self.granting.admit(session)
        if admitted is None:
            raise ConsentError("The link has been used already.", code="session_already_used")
        return admitted

    def _app(self, session: AuthSession) -> OAuthApp:
        """Return the app of a session; what an operator has yet to mend must not use the link up."""
        app = self.apps.get(session.oauth_app)
        if app is None:
            raise OAuthError(f"No OAuthApp '{session.oauth_app}' in the bundle.", code="oauthAppNotFound")
        app.client_id()
        app.client_secret()
        return app

    def _exchange(self, app: OAuthApp, session: AuthSession, code: str) -> TokenReply:
        try:
            return self.provider.exchange(app, session, code)
        except (ProviderRefusedError, ProviderUnavailableError) as error:
            raise ConsentError(error.message, code="token_exchange_failed") from error


def _require_consent(query: Mapping[str, str]) -> None:
    """Refuse a redirect that brings an error, or nothing at all (RFC 6749 §4.1.2.1)."""
    if query.get("error"):
        code = error_code(query["error"])
        raise ConsentError(f"The provider says '{code}'.", code=code)
    if not query.get("code"):
        raise ConsentError("The provider sent no code.", code="token_exchange_failed")
