"""The callbacks of all OAuthApps as an ASGI application. It logs neither queries nor bodies."""

from html import escape

import structlog
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.oauth.consent import Callback
from goondan_tasks.oauth.records import ConsentError

_log = structlog.get_logger(__name__)

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
_AGAIN = "Please try again in a moment; if the link has been used already, ask for a new one."


def make_app(callback: Callback) -> Starlette:
    """Make the application that serves the callbacks of ``callback.apps``."""

    def receive(request: Request) -> Response:  # synchronous, so that Starlette runs it in a thread
        return _receive(callback, request)

    return Starlette(routes=[Route(path, receive) for path in sorted(callback.paths)])


def _receive(callback: Callback, request: Request) -> Response:
    if request.method != "GET":  # a browser that prefetches must not use up the link
        return Response(status_code=405, headers={"Allow": "GET"})
    path, parameters = request.url.path, request.query_params.multi_items()
    try:
        if len(dict(parameters)) < len(parameters):  # RFC 6749 §3.1
            raise ConsentError("A parameter is repeated.", code="invalid_state")
        grant = callback.receive(dict(parameters), path)
    except GoondanError as error:
        _log.warning("oauth.callback", path=path, code=error.code, error=error.message)
        status = _STATUSES.get(error.code, 400) if isinstance(error, ConsentError) else 500
        return _answer(request, status, error.code, f"Nothing was granted: {error.message}")
    except RedisError as error:
        _log.warning("oauth.callback", path=path, error=f"{type(error).__name__}: {error}")
        return _answer(request, 503, "E_BROKER_UNREACHABLE", _AGAIN)
    _log.info("oauth.callback", path=path, grant=grant.name, app=grant.oauth_app)
    return _answer(request, 200, "", f"{grant.provider} is connected. You can close this page.")


def _answer(request: Request, status: int, code: str, text: str) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        content = {"error": {"code": code, "message": text}} if code else {"status": "granted"}
        return JSONResponse(content, status, _HEADERS)
    title = escape(code) or "Connected"
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p>{escape(text)}</p>"
    return HTMLResponse(page, status, _HEADERS)
