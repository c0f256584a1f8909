"""The other service: an authorization server and its API, for this machine only.

python examples/oauth-local/provider.py [PORT]

authlib checks client, redirect URI, code and PKCE; each refresh token can be used once. Everything is kept
in memory, and the page asks for a name only: there are no passwords.
"""

import sys
import time
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import uvicorn
from authlib.common.security import generate_token
from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Error, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7636 import CodeChallenge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

PORT = 8799
CLIENT_ID, CLIENT_SECRET = "goondan", "for-this-machine-only"
SCOPE = "letters.read"
TOKEN_SECONDS = 3600
LETTERS = {"ada": ["From Charles: the engine is late again.", "From Mary: come to tea."], "mary": []}

PAGE = """<!doctype html><title>Mail</title><form method="post">
<p>The postman wants to read your letters ({scope}).</p>
<p><label>You are <input name="user" value="ada"></label></p>
<p><button name="answer" value="allow">Allow</button> <button name="answer" value="deny">Deny</button></p>
</form>"""


class Client:
    """The one program that is registered here."""

    client_id = CLIENT_ID

    def check_redirect_uri(self, uri: str) -> bool:
        parts = urlsplit(uri)  # a program on this machine may listen on any port (RFC 8252 §7.3)
        return (parts.scheme, parts.hostname, parts.path) == ("http", "127.0.0.1", "/oauth/callback")

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join({SCOPE} & set((scope or "").split()))

    def check_client_secret(self, secret: str) -> bool:
        return secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in AUTH_METHODS

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return True


AUTH_METHODS = ["client_secret_basic", "client_secret_post"]


@dataclass
class Code:
    """The data of an authorization code."""

    user: str
    redirect_uri: str
    scope: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token:
    """An issued token."""

    access_token: str
    refresh_token: str
    user: str
    scope: str
    expires_at: float

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: Client) -> bool:
        return True


@dataclass
class Accounts:
    """All issued codes and tokens."""

    codes: dict[str, Code] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)

    def owner(self, request: Request) -> str | None:
        """Return whose token a request to the API carries."""
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        known = (token for token in self.tokens if token.access_token == shown)
        return next((token.user for token in known if token.expires_at > time.time()), None)


class Asked(OAuth2Request):
    """A request as authlib reads it."""

    def __init__(self, request: Request, form: dict[str, str]) -> None:
        # authlib refuses http, but this machine has no https
        url = str(request.url).replace("http://", "https://", 1)
        super().__init__(request.method, url, headers=request.headers)
        self.query, self.fields = dict(request.query_params), form
        self.payload = BasicOAuth2Payload({**self.query, **form})

    @property
    def args(self) -> dict[str, str]:
        return self.query

    @property
    def form(self) -> dict[str, str]:
        return self.fields


class Server(AuthorizationServer):
    """The accounts, as authlib needs them."""

    def __init__(self, accounts: Accounts) -> None:
        super().__init__()
        self.accounts = accounts
        self.register_token_generator("default", new_token)
        self.register_grant(CodeGrant, [CodeChallenge(required=True)])
        self.register_grant(RefreshGrant)

    def query_client(self, client_id: str) -> Client | None:
        return Client() if client_id == CLIENT_ID else None

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        given = (token["access_token"], token["refresh_token"], request.user, token["scope"])
        self.accounts.tokens.append(Token(*given, expires_at=time.time() + TOKEN_SECONDS))

    def create_oauth2_request(self, request: Asked) -> Asked:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        kind = JSONResponse if isinstance(body, dict) else Response
        return kind(body, status, dict(headers))

    def send_signal(self, *args: Any, **kwargs: Any) -> None:
        return None


def new_token(scope: str | None = None, **_: Any) -> dict[str, Any]:
    """Make a token with a refresh token."""
    tokens = {"access_token": generate_token(42), "refresh_token": generate_token(48)}
    return {**tokens, "token_type": "Bearer", "expires_in": TOKEN_SECONDS, "scope": scope}


class CodeGrant(AuthorizationCodeGrant):
    """The exchange of a code for a token."""

    TOKEN_ENDPOINT_AUTH_METHODS = AUTH_METHODS

    def save_authorization_code(self, code: str, request: Any) -> None:
        asked, data = request.payload, request.payload.data
        challenge = (data["code_challenge"], data.get("code_challenge_method", "plain"))
        self.server.accounts.codes[code] = Code(request.user, asked.redirect_uri, request.scope, *challenge)

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        return self.server.accounts.codes.get(code)

    def delete_authorization_code(self, authorization_code: Code) -> None:
        codes = self.server.accounts.codes
        self.server.accounts.codes = {
            name: code for name, code in codes.items() if code != authorization_code
        }

    def authenticate_user(self, authorization_code: Code) -> str:
        return authorization_code.user


class RefreshGrant(RefreshTokenGrant):
    """The exchange of a refresh token for a new token."""

    INCLUDE_NEW_REFRESH_TOKEN = True
    TOKEN_ENDPOINT_AUTH_METHODS = AUTH_METHODS

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        tokens = self.server.accounts.tokens
        return next((token for token in tokens if token.refresh_token == refresh_token), None)

    def authenticate_user(self, refresh_token: Token) -> str:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: Token) -> None:
        self.server.accounts.tokens.remove(refresh_token)


class Endpoints:
    """The two endpoints that OAuth needs, and the API."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.server = Server(accounts)

    async def authorize(self, request: Request) -> Response:
        """Ask the user (GET), and redirect the browser with the answer (POST)."""
        form = await form_of(request)
        asked = Asked(request, {})
        try:
            grant = self.server.get_consent_grant(asked, end_user=form.get("user"))
        except OAuth2Error as error:
            return self.server.handle_error_response(asked, error)
        if request.method == "GET":
            return HTMLResponse(PAGE.format(scope=escape(asked.payload.scope or "")))
        user = form.get("user") if form.get("answer") == "allow" else None
        return self.server.create_authorization_response(asked, grant_user=user, grant=grant)

    async def token(self, request: Request) -> Response:
        return self.server.create_token_response(Asked(request, await form_of(request)))

    async def userinfo(self, request: Request) -> Response:
        """Return the owner of the token."""
        owner = self.accounts.owner(request)
        return JSONResponse({"sub": owner}) if owner else JSONResponse({"error": "invalid_token"}, 401)

    async def letters(self, request: Request) -> Response:
        """Return the letters of the token's owner."""
        owner = self.accounts.owner(request)
        if owner is None:
            return JSONResponse({"error": "invalid_token"}, 401)
        return JSONResponse({"owner": owner, "letters": LETTERS.get(owner, [])})


async def form_of(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode()))


def make_app() -> Starlette:
    """Make the service, with nothing given out yet."""
    endpoints = Endpoints(Accounts())
    return Starlette(
        routes=[
            Route("/authorize", endpoints.authorize, methods=["GET", "POST"]),
            Route("/token", endpoints.token, methods=["POST"]),
            Route("/userinfo", endpoints.userinfo),
            Route("/letters", endpoints.letters),
        ]
    )


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else PORT
    print(f"The mail service: http://127.0.0.1:{port}", flush=True)
    uvicorn.run(make_app(), host="127.0.0.1", port=port, log_level="warning")
