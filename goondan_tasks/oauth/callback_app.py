"""The callback of every OAuthApp as an ASGI application: what a browser sees when a provider sends it back.

Neither a query nor a body is ever logged.
"""

from collections import Counter
from collections.abc import Mapping
from html import escape

import structlog
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from goondan_tasks.errors import GoondanError
from goondan_tasks.oauth.consent import Callback
from goondan_tasks.oauth.oauth_errors import ConsentError

_log = structlog.get_logger(__name__)

#: whoever is refused by the provider (``access_denied``) has done nothing wrong
_STATUSES = {
    "invalid_state": 400,
    "session_not_found": 404,
    "session_already_used": 409,
    "session_expired": 410,
    "subject_mismatch": 403,
    "scope_not_granted": 403,
    "access_denied": 403,
    "token_exchange_failed": 502,
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: the link may have been used up by then
_AGAIN = "Please try again in a moment; if the link has been used already, ask for a new one."


def make_app(callback: Callback) -> Starlette:
    """Make the application that serves the callbacks of ``callback.apps``."""

    def receive(request: Request) -> Response:
        return _received(callback, request)

    return Starlette(routes=[Route(path, receive) for path in sorted(callback.paths)])


def _received(callback: Callback, request: Request) -> Response:
    """Deal with one redirect; plain, so that Starlette runs it beside its event loop."""
    if request.method != "GET":  # a browser that only looks ahead must not use the link up
        return Response(status_code=405, headers={"Allow": "GET"})
    try:
        grant = callback.receive(_single_parameters(request), request.url.path)
    except GoondanError as error:
        _log.warning("oauth.callback", path=request.url.path, code=error.code, error=error.message)
        return _answer(request, _status(error), error.code, f"Nothing was granted: {error.message}")
    except RedisError as error:
        _log.warning("oauth.callback", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return _answer(request, 503, "E_BROKER_UNREACHABLE", _AGAIN)
    _log.info("oauth.callback", path=request.url.path, grant=grant.name, app=grant.oauth_app)
    return _answer(request, 200, "", f"{grant.provider} is connected. You can close this page.")


def _single_parameters(request: Request) -> Mapping[str, str]:
    """Return the query; RFC 6749 §3.1 lets no parameter come twice.

    Raises:
        ConsentError: one does.
    """
    items = request.query_params.multi_items()
    if any(count > 1 for count in Counter(name for name, _ in items).values()):
        raise ConsentError("A parameter comes twice.", code="invalid_state")
    return dict(items)


def _status(error: GoondanError) -> int:
    if isinstance(error, ConsentError):
        return _STATUSES.get(error.code, 400)
    return 500


def _answer(request: Request, status: int, code: str, text: str) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        content = {"error": {"code": code, "message": text}} if code else {"status": "granted"}
        return JSONResponse(content, status, _HEADERS)
    title = escape(code) or "Connected"
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p>{escape(text)}</p>"
    return HTMLResponse(page, status, _HEADERS)
