"""A stand-in for Telegram on this machine: ``python scripted_telegram.py [PORT]``.

Each line of the terminal is a message of one chat, and what the bot writes into it is printed. It knows
``getUpdates`` and ``sendMessage`` of one bot, as https://core.telegram.org/bots/api describes them: an update
is kept until a request has a higher offset, and while one request waits, a second one gets 409.
"""

import contextlib
import json
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "123456:for-this-machine-only"
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
#: how soon the end of a waiting request's connection is seen, in seconds
LOOK_SECONDS = 0.1


class ScriptedTelegram(ThreadingHTTPServer):
    """The server; its methods are what people and scripts do."""

    daemon_threads = True

    def __init__(self, port: int = 0, hear: Callable[[str], object] = lambda text: None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: answers for the next requests of getUpdates, before any other
        self.refusals: deque[dict[str, Any]] = deque()
        #: when (time.monotonic) each request of getUpdates was answered, and with which status
        self.polls: list[tuple[float, int]] = []
        #: when each request of getUpdates came
        self.begun: list[float] = []
        self.sent: list[dict[str, Any]] = []
        self._hear = hear
        self._changed = threading.Condition()
        self._updates: deque[dict[str, Any]] = deque()
        self._numbers = 0
        self._is_polled = False

    def say(self, text: str | None, chat: int = 1, kind: str = "private", **message: Any) -> int:
        """Write a message into a chat; return the update's number."""
        with self._changed:
            self._numbers += 1
            said = {
                "message_id": self._numbers,
                "date": 1_800_000_000,
                "chat": {"id": chat, "type": kind},
                "from": {"id": 7, "is_bot": False, "first_name": "Ann", "username": "ann"},
                **({} if text is None else {"text": text}),
                **message,
            }
            self._updates.append({"update_id": self._numbers, "message": said})
            self._changed.notify_all()
            return self._numbers

    def updates(self, offset: int, seconds: float, connection: socket.socket) -> dict[str, Any]:
        """Answer a request of getUpdates."""
        with self._changed:
            self.begun.append(monotonic())
            if self.refusals:
                return self._answer(self.refusals.popleft())
            if self._is_polled:
                return self._answer({"ok": False, "error_code": 409, "description": CONFLICT})
            while self._updates and self._updates[0]["update_id"] < offset:
                self._updates.popleft()
            self._is_polled, deadline = True, monotonic() + seconds
            try:
                while not self._updates and monotonic() < deadline and not _is_closed(connection):
                    self._changed.wait(LOOK_SECONDS)
            finally:
                self._is_polled = False
            return self._answer({"ok": True, "result": list(self._updates)[:100]})

    def send(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of sendMessage."""
        with self._changed:
            self._numbers += 1
            self.sent.append(message)
            self._hear(message["text"])
            return {"ok": True, "result": {"message_id": self._numbers, **message}}

    def _answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.polls.append((monotonic(), 200 if answer["ok"] else answer["error_code"]))
        return answer


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedTelegram

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == f"/bot{TOKEN}/getUpdates":
            offset, seconds = int(query.get("offset", 0)), float(query.get("timeout", 0))
            answer = self.server.updates(offset, seconds, self.connection)
        elif parts.path == f"/bot{TOKEN}/sendMessage":
            answer = self.server.send(body)
        else:
            answer = {"ok": False, "error_code": 401, "description": "Unauthorized"}
        data = json.dumps(answer).encode()
        with contextlib.suppress(ConnectionError):  # whoever asked is gone
            self._write(answer.get("error_code", 200), data)

    def _write(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def _is_closed(connection: socket.socket) -> bool:
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


if __name__ == "__main__":
    telegram = ScriptedTelegram(
        int(sys.argv[1]) if len(sys.argv) > 1 else 8081, lambda text: print(f"bot: {text}", flush=True)
    )
    threading.Thread(target=telegram.serve_forever, daemon=True).start()
    print(f"export TELEGRAM_URL={telegram.url} TELEGRAM_BOT_TOKEN={TOKEN}", flush=True)
    for line in sys.stdin:
        telegram.say(line.rstrip("\n"))
    threading.Event().wait()
