"""A small MCP server over HTTP, without the SDK, that refuses requests and forgets sessions."""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from goondan_tasks.contract.messages import JsonObject

VERSION = "2025-06-18"


class PlainHttpServer:
    """The server; ``refusal`` is the status, type, body and further headers of the answers to calls."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.calls = 0
        self.refusal: tuple[int, str, str, dict[str, str]] | None = None
        #: refuse all requests, not only calls
        self.refuses_all = False
        #: status and message for a session that is unknown
        self.unknown: tuple[int, str] = (404, "Session not found")
        #: forget each session after its first list of tools
        self.forgets_always = False
        #: set when calls with ``waits`` may be answered; those with ``breaks`` never are
        self.goes_on = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                self.answer(405, "text/plain", "", {})

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                args = message.get("params", {}).get("arguments", {})
                if args.get("waits"):
                    outer.goes_on.wait()
                if args.get("breaks"):
                    self.close_connection = True
                    return
                self.answer(*outer.answer(message, self.headers.get("mcp-session-id")))

            def answer(self, status: int, kind: str, body: str, headers: dict[str, str]) -> None:
                data = body.encode()
                self.send_response(status)
                for name, value in {
                    "content-type": kind,
                    "content-length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, message: JsonObject, session: str | None) -> tuple[int, str, str, dict[str, str]]:
        method, number = message["method"], message.get("id")
        if self.refusal is not None and (self.refuses_all or method in {"tools/call", "tasks/get"}):
            return self.refusal
        if method == "initialize":
            session = uuid.uuid4().hex
            self.sessions.add(session)
            about = {"serverInfo": {"name": "plain", "version": "1"}, "capabilities": {"tools": {}}}
            return _json(200, number, {"protocolVersion": VERSION, **about}, {"mcp-session-id": session})
        if session not in self.sessions:
            status, text = self.unknown
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32_000, "message": text}}
            return status, "application/json", json.dumps(error), {}
        if number is None:
            return 202, "application/json", "", {}
        if method == "tools/list":
            if self.forgets_always:
                self.sessions.clear()
            return _json(200, number, {"tools": [{"name": "count", "inputSchema": {"type": "object"}}]}, {})
        self.calls += 1
        return _json(200, number, {"content": [{"type": "text", "text": str(self.calls)}]}, {})


def _json(
    status: int, number: Any, result: JsonObject, headers: dict[str, str]
) -> tuple[int, str, str, dict[str, str]]:
    body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
    return status, "application/json", body, headers
