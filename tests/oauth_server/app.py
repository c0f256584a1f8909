"""The endpoints. A browser's part is played with plain forms: ``user``, and ``allow`` (yes or no)."""

import dataclasses
import time
from urllib.parse import parse_qsl

import anyio
from authlib.oauth2.rfc6749.errors import OAuth2Error
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.oauth_server.accounts import Accounts, User, Ways
from tests.oauth_server.grants import Request, Server


def make_app(accounts: Accounts) -> Starlette:
    """Make the server over its accounts."""
    endpoints = _Endpoints(accounts)
    return Starlette(
        routes=[
            Route("/authorize", endpoints.authorize, methods=["GET", "POST"]),
            Route("/token", endpoints.token, methods=["POST"]),
            Route("/revoke", endpoints.revoke, methods=["POST"]),
            Route("/device_authorization", endpoints.device_authorization, methods=["POST"]),
            Route("/device", endpoints.device, methods=["POST"]),
            Route("/userinfo", endpoints.userinfo),
            Route("/api", endpoints.userinfo),
            Route("/slack/chat.postMessage", endpoints.post_message, methods=["POST"]),
            Route("/ways", endpoints.ways, methods=["POST"]),
            Route("/seen", endpoints.seen),
        ]
    )


class _Endpoints:
    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.server = Server(accounts)

    async def authorize(self, request: HttpRequest) -> Response:
        """Show a page to whoever may consent (GET), and take the answer (POST)."""
        form = await _form(request)
        asked = Request(request, {})
        self.accounts.states.add(asked.payload.state or "")
        try:
            grant = self.server.get_consent_grant(asked, end_user=User(form.get("user", "U1")))
        except OAuth2Error as error:
            return self.server.handle_error_response(asked, error)  # type: ignore[no-any-return]
        if request.method == "GET":
            return Response(f"Allow {asked.payload.scope}?")
        user = User(form["user"]) if form["allow"] == "yes" else None
        return self.server.create_authorization_response(asked, grant_user=user, grant=grant)  # type: ignore[no-any-return]

    async def token(self, request: HttpRequest) -> Response:
        form, accounts = await _form(request), self.accounts
        kind = form.get("grant_type", "")
        accounts.counts[kind] = accounts.counts.get(kind, 0) + 1
        accounts.secrets |= {form[name] for name in ("code_verifier", "refresh_token") if name in form}
        if accounts.ways.delay:
            await anyio.sleep(accounts.ways.delay)
        if accounts.ways.is_out:
            return Response("down for maintenance", 503)
        return self.server.create_token_response(Request(request, form))  # type: ignore[no-any-return]

    async def revoke(self, request: HttpRequest) -> Response:
        read = Request(request, await _form(request))
        return self.server.create_endpoint_response("revocation", read)  # type: ignore[no-any-return]

    async def device_authorization(self, request: HttpRequest) -> Response:
        read = Request(request, await _form(request))
        return self.server.create_endpoint_response("device_authorization", read)  # type: ignore[no-any-return]

    async def device(self, request: HttpRequest) -> Response:
        """Take the answer of a user who has typed his code."""
        form = await _form(request)
        self.accounts.answers[form["user_code"]] = (User(form["user"]), form["allow"] == "yes")
        return JSONResponse({})

    async def userinfo(self, request: HttpRequest) -> Response:
        """Say whose token it is; also what a tool asks that needs one."""
        _, _, shown = request.headers.get("authorization", "").partition(" ")
        token = self.accounts.token_of(shown)
        if token is None or token.access_token != shown or token.expires_at < time.time():
            return JSONResponse({"error": "invalid_token"}, 401)
        return JSONResponse({"sub": token.user.id, "team": {"id": "T111"}})

    async def post_message(self, request: HttpRequest) -> Response:
        """Post to a channel, as a chat service does: what is wrong is said in an answer that looks well."""
        asked, known = await request.json(), await self.userinfo(request)
        if known.status_code != 200:
            return JSONResponse({"ok": False, "error": "invalid_auth"})
        if asked["channel"] != "C123":
            return JSONResponse({"ok": False, "error": "channel_not_found"})
        message = {"text": asked["text"]}
        return JSONResponse({"ok": True, "channel": "C123", "ts": "1700000000.000100", "message": message})

    async def ways(self, request: HttpRequest) -> Response:
        """Let the server behave in other ways."""
        self.accounts.ways = Ways(**await request.json())
        return JSONResponse(dataclasses.asdict(self.accounts.ways))

    async def seen(self, _: HttpRequest) -> Response:
        """Tell what came: counts, secrets and states."""
        accounts = self.accounts
        return JSONResponse(
            {
                "counts": accounts.counts,
                "secrets": sorted(accounts.secrets),
                "states": sorted(accounts.states),
                "revoked": sum(token.is_revoked for token in accounts.tokens),
            }
        )


async def _form(request: HttpRequest) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode()))
