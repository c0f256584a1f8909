"""Pages of other origins at the doors that are for pages (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).

Only origins that are named are allowed; by default there are none. Credentials that a browser adds by itself,
cookies above all, are never allowed: a page shows its token.
"""

from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from broker_config.settings import Settings, origins_of
from goondan_web.door import Door

#: how long a browser may keep the answer to its question, in seconds
ANSWER_SECONDS = 600
_METHODS = "GET, POST, DELETE"
#: besides those that any page may send
_SENT = "Authorization, Content-Type, Idempotency-Key, If-Range, Last-Event-ID, Prefer, Range"
#: besides those that any page may read
_READ = "Content-Range, ETag, Location, Preference-Applied, Retry-After, X-Vercel-AI-UI-Message-Stream"
_VARY = "Origin"


@dataclass(frozen=True, slots=True)
class NamedOrigins:
    """The origins whose pages may ask the doors that are for pages."""

    origins: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the settings."""
        return cls(origins_of(settings.http_origins))

    def allowed(self, scope: Scope, door: Door | None) -> str | None:
        """Return the origin of a request, if it is a named one and the door is for pages."""
        if door is None or not door.is_for_pages:
            return None
        origin = Headers(scope=scope).get("origin")
        return origin if origin in self.origins else None


def preflight(scope: Scope) -> Response | None:
    """Answer a browser that asks what a page of an allowed origin may send; ``None``: it does not ask."""
    if scope["method"] != "OPTIONS" or "access-control-request-method" not in Headers(scope=scope):
        return None
    headers = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": str(ANSWER_SECONDS),
    }
    return Response(status_code=204, headers=headers)


def allowing(origin: str, send: Send) -> Send:
    """Let a page of an allowed origin read the answer."""

    async def send_allowing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = _READ
            headers.add_vary_header(_VARY)
        await send(message)

    return send_allowing
