"""Serving an ASGI application with uvicorn until the process is asked to stop."""

import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from goondan_tasks.hangup import heeds_hangup

#: how long requests may go on after the first signal; an open stream would go on for ever
GRACE_SECONDS = 3

Ending = Callable[[], Awaitable[None]]


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen for the length of a ``with`` block; port 0 takes any free one.

    Raises:
        OSError: nothing can listen there.
    """
    try:
        [(family, _, _, _, place), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # such as 127..0.0.1, where a part is missing
        raise OSError(f"{host!r} is no name of a host") from None
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(place)
        server.listen()
        yield server


def url_of(server: socket.socket) -> str:
    """Return where a listening socket is reached."""
    host, port, *_ = server.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class OrderlyServer(uvicorn.Server):
    """A server that lets its application answer who still waits before it closes their connections."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in order."""
        await self._ending()
        # streams that clients keep open end with the server, and that is no error
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


async def nothing() -> None:
    """End no request before its time."""


def serve(app: ASGIApp, server: socket.socket, ending: Ending = nothing) -> None:
    """Answer requests until SIGTERM, Ctrl-C or the end of the terminal; await ``ending()`` then.

    Requests are not logged: their addresses may hold secrets. The handlers that stand now are called with the
    signal when all is done; the caller restores that of SIGHUP.
    """
    # uvicorn takes the other two by itself; under nohup this one stays ignored
    if heeds_hangup():
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    _server(app, ending).run(sockets=[server])


@contextmanager
def served(app: ASGIApp, server: socket.socket) -> Iterator[None]:
    """Answer requests beside what this process does, for the length of a ``with`` block."""
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
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return OrderlyServer(config, ending)
