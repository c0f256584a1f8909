"""The protocol, as authlib speaks it, over the accounts."""

import time
from typing import Any

from authlib.common.security import generate_token
from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tests.oauth_server.accounts import Accounts, Client, Code, DeviceCredential, Token, User

CLIENT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")


class Request(OAuth2Request):  # type: ignore[misc]
    """A request as authlib reads it."""

    def __init__(self, request: HttpRequest, form: dict[str, str]) -> None:
        # authlib refuses http, which on loopback is all there is
        url = str(request.url).replace("http://", "https://", 1)
        super().__init__(request.method, url, headers=request.headers)
        query = dict(request.query_params)
        self._query, self._form = query, form
        self.payload = BasicOAuth2Payload({**query, **form})

    @property
    def args(self) -> dict[str, str]:
        return self._query

    @property
    def form(self) -> dict[str, str]:
        return self._form


class Server(AuthorizationServer):  # type: ignore[misc]
    """The server; its grants find the accounts at it."""

    def __init__(self, accounts: Accounts) -> None:
        super().__init__()
        self.accounts = accounts
        self.register_token_generator("default", self._new_token)
        self.register_grant(CodeGrant, [CodeChallenge(required=True)])
        self.register_grant(RefreshGrant)
        self.register_grant(DeviceGrant)
        self.register_endpoint(Revocation)
        self.register_endpoint(DeviceAuthorization)

    def query_client(self, client_id: str) -> Client | None:
        return self.accounts.client if client_id == self.accounts.client.client_id else None

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        lifetime = token.get("expires_in", 10**9)
        kept = Token(
            token["access_token"],
            token.get("refresh_token"),
            token["scope"],
            request.user,
            time.time() + lifetime,
        )
        self.accounts.tokens.append(kept)
        self.accounts.secrets |= {kept.access_token, kept.refresh_token or kept.access_token}

    def _new_token(self, scope: str | None = None, include_refresh_token: bool = True, **_: Any) -> Any:
        ways = self.accounts.ways
        token: dict[str, Any] = {"token_type": "Bearer", "access_token": generate_token(42)}
        if include_refresh_token:
            token["refresh_token"] = generate_token(48)
        if ways.token_lifetime is not None:
            token["expires_in"] = ways.token_lifetime
        return {**token, "scope": ways.scope if ways.scope is not None else scope, **ways.extra}

    def create_oauth2_request(self, request: Request) -> Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if isinstance(body, dict):
            return JSONResponse(body, status, dict(headers))
        return Response(body, status, dict(headers))

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        return None


class CodeGrant(AuthorizationCodeGrant):  # type: ignore[misc]
    """The authorization code flow."""

    def save_authorization_code(self, code: str, request: Any) -> None:
        payload = request.payload
        self.server.accounts.secrets.add(code)
        self.server.accounts.codes[code] = Code(
            code,
            request.user,
            payload.redirect_uri,
            request.scope,
            payload.data.get("code_challenge"),
            payload.data.get("code_challenge_method"),
        )

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        return self.server.accounts.codes.get(code)  # type: ignore[no-any-return]

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.accounts.codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Code) -> User:
        return authorization_code.user


class RefreshGrant(RefreshTokenGrant):  # type: ignore[misc]
    """Refreshing; each refresh token can be used once."""

    INCLUDE_NEW_REFRESH_TOKEN = True
    TOKEN_ENDPOINT_AUTH_METHODS = CLIENT_AUTH_METHODS

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        found = self.server.accounts.token_of(refresh_token)
        return found if found and found.refresh_token == refresh_token else None

    def authenticate_user(self, refresh_token: Token) -> User:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: Token) -> None:
        refresh_token.is_revoked = True


class DeviceGrant(DeviceCodeGrant):  # type: ignore[misc]
    """The device code flow."""

    def query_device_credential(self, device_code: str) -> DeviceCredential | None:
        return self.server.accounts.devices.get(device_code)  # type: ignore[no-any-return]

    def query_user_grant(self, user_code: str) -> tuple[User, bool] | None:
        return self.server.accounts.answers.get(user_code)  # type: ignore[no-any-return]

    def should_slow_down(self, credential: DeviceCredential) -> bool:
        ways = self.server.accounts.ways
        ways.slow_down -= 1
        return bool(ways.slow_down >= 0)


class DeviceAuthorization(DeviceAuthorizationEndpoint):  # type: ignore[misc]
    """Where device codes come from."""

    INTERVAL = 1
    EXPIRES_IN = 600

    def get_verification_uri(self) -> str:
        return f"{self.server.accounts.client.redirect_uris[0]}/device"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        accounts = self.server.accounts
        accounts.secrets.add(data["device_code"])
        accounts.devices[data["device_code"]] = DeviceCredential(
            data["device_code"], data["user_code"], scope, time.time() + data["expires_in"]
        )


class Revocation(RevocationEndpoint):  # type: ignore[misc]
    """Where tokens are revoked."""

    CLIENT_AUTH_METHODS = CLIENT_AUTH_METHODS

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return self.server.accounts.token_of(token_string)  # type: ignore[no-any-return]

    def revoke_token(self, token: Token, request: Any) -> None:
        token.is_revoked = True
