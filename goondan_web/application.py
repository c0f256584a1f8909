"""The application: finds the door of a request, lets it in or refuses it, and logs what became of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPMethod
from time import monotonic
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_config.settings import Settings
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, GoondanError
from goondan_tasks.fleet.audit import acting_as
from goondan_web.answers import PathNotFoundError, RequestError, error_answer
from goondan_web.callers import TokenTable, caller_of, tokens_of
from goondan_web.cross_origin import NamedOrigins, allowing, preflight
from goondan_web.door import MAX_BODY_BYTES, Access, Door
from goondan_web.guard import BODY_SECONDS, Guard, bounded

_log = structlog.get_logger(__name__)

#: raises if what the doors need cannot be used, Redis above all; may block
Ready = Callable[[], None]
#: the methods that are logged by name; others may be texts of any length
#: how long a probe of readiness waits for Redis: probes of Kubernetes have about as much patience
READY_SECONDS = 2.0
_METHODS = frozenset(HTTPMethod)
_OTHER_METHOD = "other"
_FAULT = "The server failed while it answered."
_ENDS = "The server ends, and has no answer yet; what was asked for may happen all the same."
_ASK_AGAIN = "Try again in a moment; the log of the server says more."
_READ_THE_LOG = "The log of `goondan serve` says why."


@dataclass(frozen=True, slots=True)
class Application:
    """All doors behind one guard.

    Requests are logged with the template of their path, since paths may contain secrets, and without query.
    """

    app: ASGIApp
    doors: Sequence[Door]
    guard: Guard
    help_url: str
    origins: NamedOrigins
    body_seconds: float = BODY_SECONDS
    clock: Callable[[], float] = field(default=monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        door, template = self._place(scope)
        origin = self.origins.allowed(scope, door)
        began, sent = self.clock(), _Sent(send if origin is None else allowing(origin, send))
        app, receive = await self._answering(scope, receive, door, origin)
        try:
            caller = caller_of(scope)
            with acting_as(caller.person, "" if door is None else door.name, caller.name):
                await app(scope, receive, sent)
        except asyncio.CancelledError:
            # the server ends, and does not wait any longer; what it would answer by itself is plain text
            if sent.has_begun:
                raise
            ends = RequestError(_ENDS, status=503, suggestion=_ASK_AGAIN)
            await error_answer(ends, self.help_url)(scope, receive, sent)
        except RuntimeError as error:
            # so Starlette reports an error of the tree after the answer has begun
            if not (sent.has_begun and isinstance(error.__cause__, GoondanError)):
                raise
            # uvicorn closes the connection of an answer without an end, so its reader notices
            _log.warning("http.cut", path=template, code=error.__cause__.code)
        finally:
            milliseconds = round(1_000 * (self.clock() - began), 1)
            log = _log.debug if door is not None and door.is_polled else _log.info
            log(
                "http.request",
                method=scope["method"] if scope["method"] in _METHODS else _OTHER_METHOD,
                path=template,
                status=sent.status,
                ms=milliseconds,
                bytes=sent.bytes,
                door=None if door is None else door.name,
                caller=caller_of(scope).name,
            )
        return None

    async def _answering(
        self, scope: Scope, receive: Receive, door: Door | None, origin: str | None
    ) -> tuple[ASGIApp, Receive]:
        """Return what answers a request, and how that gets its body."""
        if origin is not None and (answer := preflight(scope)) is not None:
            return answer, receive
        max_body_bytes = MAX_BODY_BYTES if door is None else door.max_body_bytes
        access = self._strictest if door is None else door.access
        try:
            await self.guard.admit(
                scope,
                access,
                max_body_bytes,
                is_page_allowed=origin is not None,
                takes_passwords=door is not None and door.takes_passwords,
            )
        except GoondanError as error:
            shown = _for_strangers(error) if isinstance(error, BrokerUnreachableError) else error
            form = (door and door.error_form) or error_answer
            return form(shown, self.help_url), receive
        return self.app, bounded(receive, max_body_bytes, self.body_seconds, self.clock)

    async def end(self) -> None:
        """Let every door answer its pending requests."""
        await asyncio.gather(*(door.end() for door in self.doors))

    def _place(self, scope: Scope) -> tuple[Door | None, str | None]:
        """Return the door of a request, and the template of its path."""
        for door in self.doors:
            for route in door.routes:
                if route.matches(scope)[0] is not Match.NONE:
                    return door, route.path
        return None, None

    @property
    def _strictest(self) -> Access:
        """What applies where there is no door: strangers do not learn which paths there are."""
        levels = [door.access for door in self.doors]
        return min(levels, key=list(Access).index, default=Access.OWN)


class _Sent:
    """What was sent of an answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        #: of an answer that did not begin, since the client has left
        self.status = 499
        self.has_begun = False
        self.bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.has_begun = message["status"], True
        self.bytes += len(message.get("body", b""))
        await self._send(message)


def make_application(
    doors: Sequence[Door],
    settings: Settings,
    host: str,
    ready: Ready = lambda: None,
    table: TokenTable | None = None,
) -> Application:
    """Make the application to be served on ``host``; it also answers ``/healthz`` and ``/readyz``.

    ``table`` has the tokens of Redis, and is read at once.

    Raises:
        ConfigError: other machines can reach a door that needs a token, and no token is set; or two doors
            answer at one path.
    """
    all_doors = (*doors, _health(ready))
    _require_own_paths(all_doors)
    handlers: dict[Any, Any] = {
        GoondanError: lambda _, error: error_answer(error, settings.help_url),
        BrokerUnreachableError: lambda _, error: error_answer(_for_strangers(error), settings.help_url),
        HTTPException: lambda _, error: error_answer(_as_ours(error), settings.help_url),
        ClientDisconnect: lambda _, __: Response(status_code=400),  # nobody reads it
        Exception: lambda _, __: error_answer(
            GoondanError(_FAULT, suggestion=_READ_THE_LOG), settings.help_url
        ),
    }
    app = Starlette(
        routes=[route for door in all_doors for route in door.routes],
        exception_handlers=handlers,
        lifespan=lambda _: _lifespan(all_doors),
    )
    app.router.redirect_slashes = False
    guard = Guard.of(settings, host, doors, tokens_of(settings, table))
    return Application(app, all_doors, guard, settings.help_url, NamedOrigins.of(settings))


def _require_own_paths(doors: Sequence[Door]) -> None:
    owners: dict[str, str] = {}
    for door in doors:
        for path in {getattr(route, "path", door.path) for route in door.routes}:
            other = owners.setdefault(path, door.name)
            if other != door.name:
                raise ConfigError(
                    f"The doors {other} and {door.name} both answer at {path}.",
                    suggestion="Change the path in the bundle: callbackPath of the OAuthApp, or http.path of "
                    "the Connection.",
                )


@asynccontextmanager
async def _lifespan(doors: Sequence[Door]) -> AsyncIterator[None]:
    async with AsyncExitStack() as running:
        for door in doors:
            await running.enter_async_context(door.lifespan())
        yield


def _health(ready: Ready) -> Door:
    """Make the door for the probes of an orchestrator of containers, which know neither token nor name."""

    async def is_alive(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def is_ready(_: Request) -> Response:
        try:
            await asyncio.wait_for(asyncio.to_thread(ready), READY_SECONDS)
        except TimeoutError as error:  # the thread goes on until the client of Redis gives up
            raise BrokerUnreachableError(f"Redis has not answered within {READY_SECONDS:g} s.") from error
        return JSONResponse({"status": "ready"})

    routes = [Route("/healthz", is_alive), Route("/readyz", is_ready)]
    return Door("health", "/healthz", routes, Access.OWN, is_polled=True)


def _for_strangers(error: BrokerUnreachableError) -> BrokerUnreachableError:
    """Log an error, and return one that does not name the server's Redis and its settings."""
    _log.warning("http.broker", code=error.code, error=error.message)
    return type(error)(suggestion=_ASK_AGAIN)


def _as_ours(error: HTTPException) -> GoondanError:
    if error.status_code == 404:
        return PathNotFoundError()
    headers = error.headers or {}
    if error.status_code == 405:
        message = f"This address takes only the methods {headers.get('Allow', 'of its door')}."
        return RequestError(message, status=405, headers=headers)
    return RequestError(error.detail, status=error.status_code, headers=headers)
