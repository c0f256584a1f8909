"""The server: threads that answer one connection each, and what they have seen."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self

from tests.model_server import anthropic, chat_completions, responses
from tests.model_server.conversation import Answer, Json, Said
from tests.model_server.failures import Failure

#: how often a thread that waits looks whether the client has gone, in seconds
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Asked:
    """A request, and what has become of it."""

    #: from 0
    number: int
    path: str
    headers: Mapping[str, str]
    body: Json
    _api: ModuleType
    #: the client has closed the connection before it had the whole answer
    is_given_up: threading.Event = field(default_factory=threading.Event)
    #: the answer was sent, or its failure done
    is_answered: threading.Event = field(default_factory=threading.Event)

    @property
    def api(self) -> str:
        """``chat_completions``, ``responses`` or ``anthropic``."""
        return self._api.__name__.rpartition(".")[2]

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def said(self) -> list[Said]:
        """The conversation, the system's instructions first."""
        said: list[Said] = self._api.said(self.body)
        return said

    @property
    def tools(self) -> list[str]:
        """The names of the tools that may be called."""
        tools: list[str] = self._api.tools(self.body)
        return tools


#: makes the next answer of a conversation; called in the thread of the request
Script = Callable[[Asked], Answer | Failure]


def in_turn(*answers: Answer | Failure) -> Script:
    """Return a script that gives one answer after the other, and then the last again and again."""
    lock, left = threading.Lock(), list(answers)

    def script(_: Asked) -> Answer | Failure:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return script


class ModelServer:
    """The server; a context manager."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or in_turn(Answer("hello"))
        #: in the order in which they came
        self.requests: list[Asked] = []
        #: requests at a time, and the most of them
        self.open = 0
        self.most_open = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._http = _Http(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """What a Model's ``baseUrl`` is for OpenAI's APIs."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """What it is for Anthropic's."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def count(self) -> int:
        return len(self.requests)

    def begin(self, script: Script) -> None:
        """Answer by another script, and forget the requests so far."""
        with self._lock:
            self.script = script
            self.requests = []
            self.most_open = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    def _asked(
        self, path: str, headers: Mapping[str, str], body: Json, api: ModuleType
    ) -> tuple[Asked, Script]:
        with self._lock:
            asked = Asked(len(self.requests), path, headers, body, api)
            self.requests.append(asked)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            return asked, self.script

    def _ended(self) -> None:
        with self._lock:
            self.open -= 1


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[ModelServer]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        apis = (chat_completions, responses, anthropic)
        api = next((one for one in apis if self.path.split("?")[0].endswith(one.PATH)), None)
        if api is None:
            self._send(404, json.dumps({"error": {"message": f"no {self.path} here"}}).encode())
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked, script = self.server_of._asked(self.path, headers, body, api)
        try:
            self._answer(asked, api, script(asked))
        except (OSError, _GoneError):
            asked.is_given_up.set()
            self.close_connection = True
        finally:
            asked.is_answered.set()
            self.server_of._ended()

    def _answer(self, asked: Asked, api: Any, answer: Answer | Failure) -> None:
        if isinstance(answer, Failure):
            self._fail(asked, api, answer)
            return
        if asked.is_stream:
            self._stream(answer, api.events(answer, asked.body, asked.number))
        else:
            if answer.gate is not None:
                self._wait(answer.gate, None)
            self._send(200, json.dumps(api.whole(answer, asked.body, asked.number)).encode())

    def _fail(self, asked: Asked, api: Any, failure: Failure) -> None:
        errors = api if hasattr(api, "error") else chat_completions
        if failure.is_silent:
            self._wait(threading.Event(), None)
        elif failure.answer is not None and asked.is_stream:
            events = api.events(failure.answer, asked.body, asked.number)
            some = [event for event, _ in zip(events, range(failure.events), strict=False)]
            told = [api.error_event(failure)] if failure.status else []
            self._stream(failure.answer, iter(some + told), is_whole=bool(told) or failure.is_clean)
        elif failure.status:
            body = json.dumps(errors.error(failure)).encode() if failure.body is None else failure.body
            self._send(failure.status, body, failure.headers)
        if not failure.status and not failure.is_clean:
            self._cut()

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, answer: Answer, events: Iterator[bytes], *, is_whole: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if answer.gate is not None and number == answer.gate_after:
                self._wait(answer.gate, None)
            if answer.pace:
                self._wait(threading.Event(), answer.pace)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        if is_whole:
            self.wfile.write(b"0\r\n\r\n")

    def _wait(self, event: threading.Event, seconds: float | None) -> None:
        """Wait for an event, or for a while; raise :class:`_GoneError` as soon as the client has gone."""
        left = seconds
        while not event.wait(LOOK_SECONDS if left is None else min(LOOK_SECONDS, left)):
            if left is not None:
                left -= LOOK_SECONDS
                if left <= 0:
                    return
            if self.server_of._closing.is_set() or self._has_gone():
                raise _GoneError

    def _has_gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _GoneError(Exception):
    """The client has closed the connection, or the server is closing."""
