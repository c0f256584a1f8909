"""What an OAuth provider is asked: authlib writes the protocol, httpx2 carries it."""

from dataclasses import dataclass, field

from authlib.common.urls import add_params_to_qs, add_params_to_uri
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7009.parameters import prepare_revoke_token_request
from pydantic import SecretStr

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.device_reply import device_code_of
from goondan_tasks.oauth.id_token import id_token_claims
from goondan_tasks.oauth.oauth_errors import OAuthError, ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.provider_http import ProviderHttp
from goondan_tasks.oauth.provider_request import answer_fields, post_form
from goondan_tasks.oauth.records import AuthSession, DeviceCode
from goondan_tasks.oauth.refreshes_in_flight import REFRESH_SECONDS
from goondan_tasks.oauth.token_reply import TokenReply, reply_fields, token_reply

_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, slots=True)
class Provider:
    """The endpoints of OAuthApps; its methods block.

    What asks a provider raises ProviderRefusedError if it says no (``error`` is its own code, such as
    ``invalid_grant``), ProviderUnavailableError if it gives no usable answer (trying again may help),
    and OAuthError (``configurationError``) if the app lacks the endpoint, or the client's id or secret.
    """

    http: ProviderHttp = field(default_factory=ProviderHttp)

    def authorization_url(self, app: OAuthApp, session: AuthSession) -> str:
        """Return where the user consents: with PKCE and state (000 §12.5.6 r2). Nothing is asked."""
        endpoint = app.endpoints.authorization_url
        if endpoint is None:
            raise OAuthError(f"OAuthApp '{app.name}' has no endpoints.authorizationUrl.")
        url = prepare_grant_uri(
            add_params_to_uri(endpoint, dict(app.query)),
            client_id=app.client_id(),
            response_type="code",
            redirect_uri=session.redirect_uri,
            scope=session.requested_scopes,
            state=_plain(session.state),
            code_challenge=session.code_challenge,
            code_challenge_method="S256",
        )
        return str(url)

    def exchange(self, app: OAuthApp, session: AuthSession, code: str) -> TokenReply:
        """Exchange a code for a token, with the session's verifier (000 §12.5.6 r4, RFC 7636 §4.5)."""
        verifier = _plain(session.code_verifier)
        form = prepare_token_request(
            "authorization_code", code=code, redirect_uri=session.redirect_uri, code_verifier=verifier
        )
        return self._token(app, form, (code, verifier))

    def refresh(self, app: OAuthApp, refresh_token: SecretStr) -> TokenReply:
        """Exchange a refresh token for a token (RFC 6749 §6); a reply without a new one keeps the old."""
        secret = _plain(refresh_token)
        form = prepare_token_request("refresh_token", refresh_token=secret)
        return self._token(app, form, (secret,), seconds=REFRESH_SECONDS)

    def device_authorization(self, app: OAuthApp, scopes: tuple[str, ...]) -> DeviceCode:
        """Ask for a device code (RFC 8628 §3.1)."""
        url = app.endpoints.device_authorization_url
        if url is None:
            raise OAuthError(
                f"OAuthApp '{app.name}' has no endpoints.deviceAuthorizationUrl.",
                code="deviceCodeUnsupported",
            )
        form = add_params_to_qs("", [("scope", " ".join(scopes))])
        device = device_code_of(answer_fields(app, post_form(self.http, app, url, form), ()))
        if device is None:
            raise ProviderUnavailableError(f"The answer of {app.provider} holds no device code.")
        return device

    def device_token(self, app: OAuthApp, device: DeviceCode) -> TokenReply:
        """Ask whether the user has consented; the errors of RFC 8628 §3.5 say how to go on."""
        secret = _plain(device.device_code)
        return self._token(app, prepare_token_request(_DEVICE_GRANT, device_code=secret), (secret,))

    def revoke(self, app: OAuthApp, token: SecretStr, *, hint: str) -> bool:
        """Revoke a token (RFC 7009 §2.1), of which ``hint`` is the kind; False if the app has no endpoint."""
        if app.endpoints.revoke_url is None:
            return False
        secret = _plain(token)
        form, _ = prepare_revoke_token_request(secret, hint)
        response = post_form(self.http, app, app.endpoints.revoke_url, form)
        if response.status != 200 or reply_fields(response.text):  # RFC 7009 §2.2: the text means nothing
            answer_fields(app, response, (secret,))
        return True

    def claims(self, app: OAuthApp, reply: TokenReply) -> JsonObject:
        """Return what the provider says of the resource owner; empty if it says nothing."""
        claims: JsonObject = {}
        if reply.id_token is not None:
            claims = id_token_claims(_plain(reply.id_token), app.client_id())
        if app.endpoints.user_info_url is None:
            return claims
        token = _plain(reply.access_token)
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        user_info = answer_fields(app, self.http.get(app.endpoints.user_info_url, headers), (token,))
        # OpenID Connect Core 1.0 §5.3.2: else it may tell of another user
        if claims and user_info.get("sub") != claims["sub"]:
            raise ProviderRefusedError("userinfo and id_token tell of two users.", error="subject_mismatch")
        return {**claims, **user_info}

    def _token(
        self, app: OAuthApp, form: str, secrets: tuple[str, ...], *, seconds: float | None = None
    ) -> TokenReply:
        response = post_form(self.http, app, app.endpoints.token_url, form, seconds=seconds)
        reply = token_reply(answer_fields(app, response, secrets))
        if reply is None:
            raise ProviderUnavailableError(f"The answer of {app.provider} holds no access token.")
        return reply


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
