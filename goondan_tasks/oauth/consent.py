"""Asking a user for consent: a session in the store, and the link that he gets (000 §12.5.6, §12.5.7)."""

import secrets
from dataclasses import dataclass

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from pydantic import SecretStr

from goondan_tasks.messages import JsonObject, epoch_milliseconds, iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import AuthSession, DeviceCode, Resume, request_name
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.token_result import AuthorizationRequired
from goondan_tasks.run import Clock

SESSION_SECONDS = 600
#: 43 letters each, RFC 7636 §4.1 of the verifier
_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class Consent:
    """Opens sessions, and says what their users are to do."""

    store: OAuthStore
    provider: Provider
    clock: Clock
    #: where browsers reach ``goondan oauth serve``, for apps without ``redirect.baseUrl``
    public_url: str | None

    def begin(
        self, app: OAuthApp, subject: str, scopes: tuple[str, ...], resume: Resume | None
    ) -> AuthorizationRequired:
        """Ask for a subject's consent; a live session that asks for the same is used again.

        Raises:
            OAuthError: the app lacks what its flow needs, or its provider gives no device code.
            OAuthStoreError: a record of the store cannot be read.
        """
        session = self._session(app, subject, scopes, resume)
        session = (
            self._for_device(app, session) if app.flow == "device_code" else self._for_code(app, session)
        )
        self.required(app, session)  # what the app lacks is found before anything is stored
        return self.required(app, self.store.open_session(session))

    def required(self, app: OAuthApp, session: AuthSession) -> AuthorizationRequired:
        """Return what the user of a session is told."""
        device, message = session.device, f"{app.provider} has to be connected. Please consent at the link."
        if device is None:
            place = self.provider.authorization_url(app, session)
        else:
            place = device.verification_uri_complete or device.verification_uri
            message = f"{message} If you are asked for a code, it is {device.user_code}."
        return AuthorizationRequired(
            auth_session_id=session.id,
            authorization_url=place,
            expires_at=session.expires_at,
            message=message,
            device_code=None if device is None else _view(device),
        )

    def _session(
        self, app: OAuthApp, subject: str, scopes: tuple[str, ...], resume: Resume | None
    ) -> AuthSession:
        now = self.clock()
        return AuthSession(
            id=f"as-{secrets.token_hex(12)}",
            oauth_app=app.name,
            provider=app.provider,
            subject_mode=app.subject_mode,
            subject=subject,
            requested_scopes=scopes,
            flow=app.flow,
            created_at=iso_time(now),
            expires_at=iso_time(now + SESSION_SECONDS * 1000),
            resume=resume,
        )

    def _for_code(self, app: OAuthApp, session: AuthSession) -> AuthSession:
        verifier = secrets.token_urlsafe(_RANDOM_BYTES)
        return session.model_copy(
            update={
                "code_verifier": SecretStr(verifier),
                "code_challenge": create_s256_code_challenge(verifier),
                "state": SecretStr(f"{session.id}.{secrets.token_urlsafe(_RANDOM_BYTES)}"),
                "redirect_uri": redirect_uri(app, self.public_url),
            }
        )

    def _for_device(self, app: OAuthApp, session: AuthSession) -> AuthSession:
        """Ask the provider for a code, unless the user has one of which we know."""
        pending = self.store.pending_sessions(app.name, session.subject)
        live = next((one for one in pending if request_name(one) == request_name(session)), None)
        if live is not None:
            return session.model_copy(update={"device": live.device, "expires_at": live.expires_at})
        device = self.provider.device_authorization(app, session.requested_scopes)
        end = epoch_milliseconds(session.created_at) + device.expires_in * 1000
        return session.model_copy(update={"device": device, "expires_at": iso_time(end)})


def redirect_uri(app: OAuthApp, public_url: str | None) -> str:
    """Return where the provider sends the user back to (RFC 6749 §3.1.2).

    Raises:
        OAuthError: nobody says where that is.
    """
    base = app.redirect_base_url or public_url
    if base is None or app.callback_path is None:
        raise OAuthError(
            f"Nobody says where the callback of OAuthApp '{app.name}' is.",
            suggestion="Set redirect.callbackPath, and GOONDAN_PUBLIC_URL or redirect.baseUrl.",
        )
    return base.rstrip("/") + app.callback_path


def _view(device: DeviceCode) -> JsonObject:
    """Return what the user may see of a device code (000 §12.5.7)."""
    return {
        "verificationUri": device.verification_uri,
        "userCode": device.user_code,
        "expiresIn": device.expires_in,
        "interval": device.interval,
    }
