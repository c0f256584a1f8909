"""Serving an ASGI application with uvicorn until the process is asked to stop."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

#: how long requests may go on after the first signal; an open stream would go on for ever
GRACE_SECONDS = 3


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen for the length of a ``with`` block; port 0 takes any free one.

    Raises:
        OSError: nothing can listen there.
    """
    [(family, _, _, _, place), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(place)
        server.listen()
        yield server


def url_of(server: socket.socket) -> str:
    """Return where a listening socket is reached."""
    host, port, *_ = server.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(app: ASGIApp, server: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C. Requests are not logged: their addresses may hold secrets."""
    _server(app).run(sockets=[server])


@contextmanager
def served(app: ASGIApp, server: socket.socket) -> Iterator[None]:
    """Answer requests beside what this process does, for the length of a ``with`` block."""
    running = _server(app)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        running.should_exit = True
        thread.join()


def _server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)
