"""Running an application with uvicorn, and which requests ``goondan mcp-server`` accepts.

A client may send half a request and nothing more: times and the number of connections have limits.

Needs the extra ``serve``.
"""

import asyncio
import hmac
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from urllib.parse import SplitResult, urlsplit

import h11
import uvicorn
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker_config.hard_end import HardEnd
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.machine.process import is_loopback, names_this_machine, sighup_ends_process

#: how long requests may run after the first signal, since open streams would never end
GRACE_SECONDS = 3
#: how long all may take until the process ends, whatever Redis does
END_SECONDS = 15.0
#: how long a client may take to send the head of a request, and its body
HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
#: further connections are closed at once
MAX_CONNECTIONS = 800
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
Ending = Callable[[], Awaitable[None]]
SCHEME = "bearer"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpGuard:
    """An ASGI middleware that refuses requests from other web pages, and requests without the token.

    A browser sends the ``Origin`` of the requesting page. Accepted are the origin of ``public_url`` and, if
    the server is local, those of this machine. Without a token, ``Host`` must be a name of this machine;
    otherwise a page whose name resolves to it (DNS rebinding) would have the same origin.
    """

    app: ASGIApp
    token: SecretStr | None
    public_url: str | None
    is_local: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(Headers(scope=scope))
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin):
            return error_response(403, "Requests from web pages of other origins are refused.")
        if self.token is None and not names_this_machine(headers.get("host", "")):
            return error_response(403, "The Host header names another machine.")
        if self.token is not None and not _shows(headers, self.token):
            return error_response(401, "This needs a token: Authorization: Bearer TOKEN.")
        return None

    def _is_ours(self, origin: str) -> bool:
        parts, public = _split(origin), _split(self.public_url or "")
        if self.is_local and parts is not None and is_loopback(parts.hostname or ""):
            return True
        return parts is not None and public is not None and _origin(parts) == _origin(public)


def guarded(app: ASGIApp, settings: Settings, host: str) -> HttpGuard:
    """Guard an application served on ``host``.

    Raises:
        ConfigError: other machines can reach it, and no token is set.
    """
    is_local = is_loopback(host)
    if settings.http_token is None and not is_local:
        raise ConfigError(
            f"Anyone who can reach {host} could run the agent's tools: no token is set.",
            suggestion="Set GOONDAN_HTTP_TOKEN, or listen on 127.0.0.1.",
        )
    return HttpGuard(app, settings.http_token, settings.public_url, is_local)


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
    """Return a URL's origin with an explicit port, which browsers omit if it is the default."""
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return a response with ``{"error": {"message": …}}``."""
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer", **(headers or {})}
    return JSONResponse({"error": {"message": message}}, status, headers)


class ImpatientProtocol(H11Protocol):
    """Closes connections whose requests do not arrive in time; responses may take as long as they do."""

    #: what the client has to send, and the timer for it
    _expected: str | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the head of a request, or close a connection that is one too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _expect(self) -> None:
        state = self.conn.their_state
        expected = "head" if state is h11.IDLE else "body" if state is h11.SEND_BODY else None
        if expected == self._expected:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._expected, self._timer = expected, None
        if expected is not None:
            seconds = HEAD_SECONDS if expected == "head" else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self._expected == "head":
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class OrderlyServer(uvicorn.Server):
    """A server that lets its application answer pending requests before connections are closed."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending
        #: started by the caller
        self.hard_end = HardEnd()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, as uvicorn does, and end at the latest :data:`END_SECONDS` later."""
        self.hard_end.within(END_SECONDS)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Await ``ending``, then shut down."""
        await self._ending()
        # uvicorn logs an error for each open stream
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


async def nothing() -> None:
    """Do nothing at the end: requests end by themselves."""


def serve(app: ASGIApp, server: socket.socket, ending: Ending = nothing) -> None:
    """Serve until SIGTERM, Ctrl-C or SIGHUP, then await ``ending()``.

    Requests are not logged, since their URLs may contain secrets. At the end, the previous signal handlers
    are called with the signal; the caller restores that of SIGHUP.
    """
    # uvicorn handles the other two signals; under nohup SIGHUP stays ignored
    if sighup_ends_process():
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    orderly = _server(app, ending)
    orderly.hard_end.start()
    try:
        orderly.run(sockets=[server])
    finally:
        orderly.hard_end.call_off()


@contextmanager
def served(app: ASGIApp, server: socket.socket) -> Iterator[None]:
    """Serve on a thread during a ``with`` block."""
    running = _server(app, nothing)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        running.should_exit = True
        thread.join()


def _server(app: ASGIApp, ending: Ending) -> OrderlyServer:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="none",
        http=ImpatientProtocol,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return OrderlyServer(config, ending)
