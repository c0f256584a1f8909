"""Who may ask an HTTP server of ours: nobody's web page, and with a token only who shows it."""

import hmac
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from broker_config.settings import Settings
from goondan_tasks.errors import ConfigError
from goondan_tasks.loopback import is_loopback

SCHEME = "bearer"
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpGuard:
    """An ASGI application that lets requests through to another, or refuses them.

    A browser names the ``Origin`` of a page that asks; only pages of this machine, if it is all that can
    reach the server, and of ``public_url`` pass. Without a token ``Host`` must be a name of this machine,
    else a page whose name is made to point here (DNS rebinding) would be of the same origin.
    """

    app: ASGIApp
    token: SecretStr | None
    public_url: str | None
    is_local: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(Headers(scope=scope))
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin):
            return _refuse(403, "Requests of web pages of other origins are refused.")
        if self.token is None and not _is_local(_split(f"//{headers.get('host', '')}")):
            return _refuse(403, "The Host header names another machine.")
        if self.token is not None and not _shows(headers, self.token):
            return _refuse(401, "A token is needed: Authorization: Bearer TOKEN.")
        return None

    def _is_ours(self, origin: str) -> bool:
        parts, public = _split(origin), _split(self.public_url or "")
        if self.is_local and _is_local(parts):
            return True
        return parts is not None and public is not None and _origin(parts) == _origin(public)


def guarded(app: ASGIApp, settings: Settings, host: str) -> HttpGuard:
    """Guard an application that is to be served on ``host``.

    Raises:
        ConfigError: others than this machine could reach it, and no token is set.
    """
    is_local = is_loopback(host)
    if settings.http_token is None and not is_local:
        raise ConfigError(
            f"Whoever reaches {host} could run the agent's tools: no token is set.",
            suggestion="Set GOONDAN_HTTP_TOKEN, or listen on 127.0.0.1.",
        )
    return HttpGuard(app, settings.http_token, settings.public_url, is_local)


def _is_local(parts: SplitResult | None) -> bool:
    return parts is not None and is_loopback(parts.hostname or "")


def _shows(headers: Headers, token: SecretStr) -> bool:
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    expected = token.get_secret_value().encode()
    return scheme.lower() == SCHEME and hmac.compare_digest(shown.strip().encode("latin-1"), expected)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname else None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return what two URLs of one origin have in common; browsers write no capitals and no usual ports."""
    return parts.scheme, parts.hostname, parts.port or _USUAL_PORTS.get(parts.scheme)


def _refuse(status: int, message: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"message": message}}, status, headers)
