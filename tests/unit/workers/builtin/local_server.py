"""A small HTTP server on a loopback address, with routes that a test adds."""

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """What the server was sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Route = Callable[[BaseHTTPRequestHandler], None]


class LocalServer:
    """A server in threads of its own; unknown paths answer ``hello``."""

    def __init__(self, address: str, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[SeenRequest] = []
        self.routes: dict[str, Route] = {}
        self._http = _Server((address, port), _handler_of(self))
        if tls:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.port = int(self._http.server_address[1])
        self.url = f"{'https' if tls else 'http'}://{address}:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(
        self, path: str, body: bytes = b"", *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Answer a path with this response."""

        def respond(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)

        self.routes[path] = respond


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients of these tests hang up."""


def _handler_of(server: LocalServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.seen.append(SeenRequest(self.command, self.path, headers, body))
            if self.path not in server.routes:
                server.answer(self.path, b"hello")
            server.routes[self.path](self)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler
