"""The door ``oauth``: the callbacks of all OAuthApps. It logs neither queries nor bodies."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import structlog
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from broker_config.connections import connect
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.client import Client
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, GoondanError
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.consent import Callback, Maintenance, public_url_of
from goondan_tasks.oauth.manager import open_keys, open_store, require_keys, store_clock
from goondan_tasks.oauth.records import ConsentError
from goondan_web.answers import error_answer
from goondan_web.door import Access, Door, DoorContext

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


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door, and look after device codes meanwhile."""
    bundle = context.bundle()
    if not bundle.oauth_apps:
        raise ConfigError(
            "The bundle has no OAuthApps.", suggestion="Declare an OAuthApp, or open other doors."
        )
    with callback_of(bundle, context.settings) as callback, Maintenance(callback).running():
        yield oauth_door(callback, context.settings.help_url)


@contextmanager
def callback_of(bundle: Bundle, settings: Settings) -> Iterator[Callback]:
    """Yield the callback that receives consents and wakes agents.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
        OAuthStoreError: the keys do not decrypt the store's grants.
    """
    with (
        connect(settings.redis_url, name="goondan-oauth") as redis,
        broker_errors(settings.redis_url),
        Client(settings, bundle) as client,
    ):
        keys = open_keys(settings)
        store = open_store(settings, redis, keys)
        require_keys(store, keys)
        apps, clock = apps_of(bundle.oauth_apps), store_clock(settings, redis)
        yield Callback(apps, store, client.send, clock, public_url_of(settings))


def oauth_door(callback: Callback, help_url: str) -> Door:
    """Make the door that serves the callbacks of ``callback.apps``."""

    def receive(request: Request) -> Response:  # synchronous, so that Starlette runs it in a thread
        answer = _receive(callback, request, help_url)
        answer.headers.update(_HEADERS)
        return answer

    routes = [Route(path, receive) for path in sorted(callback.paths)]
    for route in routes:
        route.methods = {"GET"}  # without HEAD: a browser that prefetches must not use up the link
    return Door("oauth", "", routes, Access.OWN)


def _receive(callback: Callback, request: Request, help_url: str) -> Response:
    path, parameters = request.url.path, request.query_params.multi_items()
    error: GoondanError
    wants_json = "application/json" in request.headers.get("accept", "")
    try:
        if len(dict(parameters)) < len(parameters):  # RFC 6749 §3.1
            raise ConsentError("A parameter is repeated.", code="invalid_state")
        grant = callback.receive(dict(parameters), path)
    except GoondanError as refused:
        _log.warning("oauth.callback", path=path, code=refused.code, error=refused.message)
        error, text = refused, f"Nothing was granted: {refused.message}"
        status = _STATUSES.get(error.code, 400) if isinstance(error, ConsentError) else 500
    except RedisError as away:
        _log.warning("oauth.callback", path=path, error=f"{type(away).__name__}: {away}")
        error, text, status = BrokerUnreachableError(_AGAIN), _AGAIN, 503
    else:
        _log.info("oauth.callback", path=path, grant=grant.name, app=grant.oauth_app)
        text = f"{grant.provider} is connected. You can close this page."
        return JSONResponse({"status": "granted"}) if wants_json else _page("Connected", text, 200)
    return error_answer(error, help_url, status) if wants_json else _page(error.code, text, status)


def _page(title: str, text: str, status: int) -> Response:
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><h1>{escape(title)}</h1>"
    return HTMLResponse(f"{head}<p>{escape(text)}</p>", status)
