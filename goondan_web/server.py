"""Running the application with uvicorn.

A client may send half a request and nothing more: times and the number of connections have limits.
"""

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker_config.hard_end import END_SECONDS, HardEnd
from goondan_tasks.machine.process import sighup_ends_process
from goondan_web.answers import RequestError, error_answer
from goondan_web.application import Application
from goondan_web.guard import HEAD_TOO_LARGE, MAX_HEAD_BYTES

#: how long requests may run after the first signal, since open streams would never end
GRACE_SECONDS = 3
#: how long a client may take to send the head of a request, and its body (the guard answers sooner)
HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
#: how long a client may leave an answer unread
UNREAD_SECONDS = 60.0
#: further connections are closed at once
MAX_CONNECTIONS = 800


class ImpatientProtocol(H11Protocol):
    """Closes connections whose requests do not arrive in time, or whose responses are not read.

    Responses may take as long as they do.
    """

    #: what the client has to send, and the timer for it
    _expected: str | None = None
    _timer: asyncio.TimerHandle | None = None
    #: runs while the client leaves an answer unread
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the head of a request, or close a connection that is one too many."""
        super().connection_made(transport)
        _send_at_once(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._expect()

    def pause_writing(self) -> None:
        """Expect the client to read its answer."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Write on, since the client reads."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
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
            self._refuse(RequestError("The request did not come in time.", status=408))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or whose head is too large, while h11's error is handled."""
        is_too_large = getattr(sys.exception(), "error_status_hint", 400) == 431
        self._refuse(RequestError(HEAD_TOO_LARGE, status=431) if is_too_large else RequestError(msg))
        self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Answer what never reaches the application."""
        application: Application = self.config.app  # type: ignore[assignment]
        answer = error_answer(error, application.help_url)
        head = (f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}", "Connection: close")
        fields = (f"{name.decode()}: {text.decode()}" for name, text in answer.raw_headers)
        self.transport.write("\r\n".join((*head, *fields, "", "")).encode() + bytes(answer.body))


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let no write wait for the client's acknowledgement of the one before, which takes it 40 ms.

    asyncio does so only where the listening socket names its protocol. Heads and bodies are two writes, and
    so is each event of a stream.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
        with suppress(OSError):  # the client has left
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class OrderlyServer(uvicorn.Server):
    """A server that lets its application answer pending requests before connections are closed."""

    def __init__(self, application: Application) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                ws="none",
                http=ImpatientProtocol,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                server_header=False,
                # otherwise a client on this machine names its own address, also to the trusted proxies' rule
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._application = application
        #: started by the caller
        self.hard_end = HardEnd()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, as uvicorn does, and end at the latest :data:`END_SECONDS` later."""
        self.hard_end.within(END_SECONDS)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application answer its pending requests, then shut down."""
        await self._application.end()
        # uvicorn logs an error for each open stream
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def serve(application: Application, server: socket.socket) -> None:
    """Serve until SIGTERM, Ctrl-C or SIGHUP, and end in order.

    At the end, the previous signal handlers are called with the signal; the caller restores that of SIGHUP.
    """
    # uvicorn handles the other two signals; under nohup SIGHUP stays ignored
    if sighup_ends_process():
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    orderly = OrderlyServer(application)
    orderly.hard_end.start()
    try:
        orderly.run(sockets=[server])
    finally:
        orderly.hard_end.call_off()


@contextmanager
def served(application: Application, server: socket.socket) -> Iterator[None]:
    """Serve on a thread during a ``with`` block."""
    running = OrderlyServer(application)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        running.should_exit = True
        thread.join()
