"""The process of one Connection whose connector is Python: ``python -m goondan_tasks.connectors.child FD``.

It reads messages from stdin and writes its own to the file descriptor FD, each one line of JSON; what the
connector prints goes to the log. It ends when stdin closes, so that it does not outlive the program that
has started it.

======================================================  =====================================================
to the process                                          from the process
======================================================  =====================================================
``{type: start, entry, connection, connector, config,   ``{type: started}``
secrets, http, called}``, of which ``http`` is whether
it answers requests
``{type: request, id, method, path, query, headers,     ``{type: serving}``: a handler is registered
body}``, the body in base64
``{type: cancel, id}``: nobody waits for the answer     ``{type: response, id, status, headers, body}``,
..                                                       or with ``error`` and ``trace``
``{type: answer, id, value}``, or with ``error``         ``{type: ask, id, name, value}``, or with ``bytes``,
``{code, message, suggestion}`` for ``value``            its size if ``value`` is too large; the names
..                                                       are ``emit``, ``cursor.get``, ``cursor.set``,
..                                                       ``line``; those of triggers ``cron.next``,
..                                                       ``cron.done`` and ``oauth.token``
``{type: stop}``                                         ``{type: log, level, message, fields}``
``{type: leased, seconds}``: the lease is renewed, and   ``{type: ended}``, or with ``error`` and ``trace``
the process ends by itself if this does not come again
======================================================  =====================================================
"""

import asyncio
import inspect
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import isinf
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from goondan_tasks.authoring.connector_api import Accepted, ConnectorEvent, Line
from goondan_tasks.authoring.entry import connect_in, import_entry
from goondan_tasks.authoring.webhooks import (
    MAX_AGE_SECONDS,
    Handler,
    HttpRequest,
    Scheme,
    signing_secret,
    verify,
)
from goondan_tasks.connectors.child_requests import serve_in_threads, serve_on_loop
from goondan_tasks.connectors.triggers import triggered
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import JsonObject

#: the exit code of a process whose lease was not renewed
LEASE_OVER = 75
#: of the texts about an error, in characters
LONGEST = 4_000
#: the limit of a message's JSON, and in characters that of a log line whose message would be larger
MAX_MESSAGE_BYTES, LONGEST_LOGGED = 4_194_304, 65_536
_LEVELS = ("debug", "info", "warning", "error")


class Channel:
    """The messages to and from the program that has started this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        #: gets the messages about requests, once a handler is registered
        self.on_request: Callable[[Mapping[str, Any]], object] | None = None
        #: ends the process, as it is asked to
        self.on_stop: Callable[[], object] = partial(os._exit, 0)
        #: a ``time.monotonic()``: the lease is over, for all that this process knows
        self._leased_until = float("inf")

    def write(self, message: JsonObject) -> None:
        """Write a message; one whose reader is gone is dropped, as this process ends then."""
        self._send(_encoded(message))

    def _send(self, data: bytes) -> None:
        with self._writing:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def ask(self, name: str, value: Any) -> "Future[Any]":
        """Ask for something; the future gets the answer, or a ConnectorError."""
        number, answer = next(self._numbers), Future[Any]()
        data = _encoded({"type": "ask", "id": number, "name": name, "value": value})
        if len(data) > MAX_MESSAGE_BYTES:
            data = _encoded({"type": "ask", "id": number, "name": name, "bytes": len(data)})
        self._asked[number] = answer
        self._send(data)
        return answer

    def log(self, level: str, text: str, fields: Mapping[str, object]) -> None:
        """Write a log line; of one that is too large the beginning, without its fields."""
        data = _encoded({"type": "log", "level": level, "message": text, "fields": fields})
        if len(data) > MAX_MESSAGE_BYTES:
            cut = f"{text[:LONGEST_LOGGED]}... (truncated)"
            data = _encoded({"type": "log", "level": level, "message": cut, "fields": {}})
        self._send(data)

    def answer(self, message: Mapping[str, Any]) -> None:
        """Pass an answer on to who has asked."""
        asked = self._asked.pop(message["id"], None)
        if asked is None or not asked.set_running_or_notify_cancel():
            return
        error = message.get("error")
        if error is None:
            asked.set_result(message.get("value"))
        else:
            asked.set_exception(
                ConnectorError(error["message"], code=error["code"], suggestion=error.get("suggestion"))
            )

    def note_leased(self, seconds: float) -> None:
        """Let the process run for so long, and longer if this is called again meanwhile."""
        is_first, self._leased_until = isinf(self._leased_until), time.monotonic() + seconds
        if is_first:
            threading.Thread(target=self._watch_lease, daemon=True).start()

    def _watch_lease(self) -> None:
        """End with the lease: the program that renews it may be frozen, and others may have it then."""
        while (left := self._leased_until - time.monotonic()) > 0:
            time.sleep(left)
        os._exit(LEASE_OVER)


def _encoded(message: JsonObject) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"


class ConnectorLogger:
    """Writes log lines to the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, level: str) -> Callable[..., None]:
        if level not in _LEVELS:
            raise AttributeError(level)

        def write(event: object, /, *args: object, **fields: object) -> None:
            text = str(event) % args if args else str(event)
            self._channel.log(level, text, fields)

        return write


@dataclass(frozen=True, slots=True)
class ChildCursor:
    """A :class:`~goondan_tasks.authoring.connector_api.Cursor`."""

    channel: Channel
    wait: Callable[["Future[Any]"], Any]

    def get(self) -> Any:
        """Return the stored JSON."""
        return self.wait(self.channel.ask("cursor.get", None))

    def set(self, value: Any) -> Any:
        """Store any JSON."""
        return self.wait(self.channel.ask("cursor.set", value))


@dataclass(frozen=True, slots=True)
class ChildContext:
    """A :class:`~goondan_tasks.authoring.connector_api.ConnectorContext`."""

    channel: Channel
    connection_name: str
    connector_name: str
    config: Mapping[str, str]
    secrets: Mapping[str, str]
    logger: ConnectorLogger
    cursor: ChildCursor
    #: makes a coroutine of an answer, or waits for it
    wait: Callable[["Future[Any]"], Any]
    #: answers requests until the end; ``None`` if the Connector declares none
    serve: Callable[[Channel, Handler], Any] | None

    def http(self, handler: Handler) -> Any:
        """Answer the requests to the Connection until the process ends."""
        if self.serve is None:
            raise ConnectorError(
                f"The Connector {self.connector_name!r} declares no requests.",
                suggestion="Add 'http: {}' to its spec.",
            )
        return self.serve(self.channel, handler)

    def emit(self, event: ConnectorEvent | Mapping[str, Any]) -> Any:
        """Hand an event over."""
        wire = event.to_wire() if isinstance(event, ConnectorEvent) else event
        return self.wait(_read_as(Accepted.from_wire, self.channel.ask("emit", wire)))

    def read_line(self) -> Any:
        """Return the next line of the program's standard input."""
        return self.wait(_read_as(lambda wire: wire and Line(**wire), self.channel.ask("line", None)))

    def verify(
        self,
        request: HttpRequest,
        scheme: Scheme,
        *,
        secret: str | None = None,
        header: str | None = None,
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        """Return if a request is genuine."""
        known = signing_secret(self.secrets) if secret is None else secret
        verify(request, scheme, known, header=header, max_age_seconds=max_age_seconds)


def _read_as(read: Callable[[Any], Any], answer: "Future[Any]") -> "Future[Any]":
    """Return a future with what an answer on the wire means."""
    meant: Future[Any] = Future()

    def pass_on(one: "Future[Any]") -> None:
        if not meant.set_running_or_notify_cancel():
            return
        if (error := one.exception()) is not None:
            meant.set_exception(error)
        else:
            meant.set_result(read(one.result()))

    answer.add_done_callback(pass_on)
    return meant


async def _in_coroutine(answer: "Future[Any]") -> Any:
    return await asyncio.wrap_future(answer)


def _blocking(answer: "Future[Any]") -> Any:
    return answer.result()


def main(descriptor: int) -> None:
    """Run the connector that the first message names, until it ends or is told to stop."""
    channel = Channel(descriptor)
    lines = sys.stdin.buffer
    start = json.loads(lines.readline() or b"{}")
    if start.get("type") != "start":
        return
    threading.Thread(target=_read, args=(lines, channel), daemon=True).start()
    try:
        module = import_entry(Path(start["entry"]))
        connect = triggered(module, start["called"]) if start.get("called") else connect_in(module)
    except BaseException as error:  # noqa: BLE001 - the entry's own code may raise anything
        channel.write({"type": "ended", **_fault(error)})
        return
    channel.write({"type": "started"})
    is_async = inspect.iscoroutinefunction(inspect.unwrap(connect)) or inspect.iscoroutinefunction(
        getattr(connect, "__call__", None)  # noqa: B004 - an object whose method is a coroutine
    )
    ended = _run_async if is_async else _run_plain
    channel.write({"type": "ended", **ended(connect, channel, start)})


def _context(
    channel: Channel,
    start: JsonObject,
    wait: Callable[["Future[Any]"], Any],
    serve: Callable[[Channel, Handler], Any],
) -> ChildContext:
    return ChildContext(
        channel,
        start["connection"],
        start["connector"],
        MappingProxyType(start["config"]),
        MappingProxyType(start["secrets"]),
        ConnectorLogger(channel),
        ChildCursor(channel, wait),
        wait,
        serve if start["http"] else None,
    )


def _read(lines: Any, channel: Channel) -> None:
    """Take messages until the program that has started this process ends it, or is gone."""
    for line in lines:
        message = json.loads(line)
        if message["type"] == "answer":
            channel.answer(message)
        elif message["type"] == "leased":
            channel.note_leased(message["seconds"])
        elif message["type"] == "stop":
            channel.on_stop()
        elif channel.on_request is not None:
            channel.on_request(message)
    os._exit(0)


def _run_async(connect: Callable[..., Any], channel: Channel, start: JsonObject) -> JsonObject:
    async def run() -> JsonObject:
        loop, running = (
            asyncio.get_running_loop(),
            asyncio.ensure_future(cast(Any, connect(_context(channel, start, _in_coroutine, serve_on_loop)))),
        )
        channel.on_stop = lambda: loop.call_soon_threadsafe(running.cancel)
        await asyncio.wait([running])
        return {} if running.cancelled() else _fault(running.exception())

    try:
        return asyncio.run(run())
    except BaseException as error:  # noqa: BLE001 - such as sys.exit, which leaves the loop
        return _fault(error)


def _run_plain(connect: Callable[..., Any], channel: Channel, start: JsonObject) -> JsonObject:
    """Run a plain function; it cannot be interrupted, so a stop ends the process."""
    try:
        answer = connect(_context(channel, start, _blocking, serve_in_threads))
    except BaseException as error:  # noqa: BLE001 - the connector's own code may raise anything
        return _fault(error)
    if inspect.isawaitable(answer):
        return _fault(TypeError("connect returned an awaitable, but is not declared with `async def`"))
    return {}


def _fault(error: BaseException | None) -> JsonObject:
    if error is None:
        return {}
    text = "".join(traceback.format_exception_only(error)).strip()
    return {"error": text[:LONGEST], "trace": "".join(traceback.format_exception(error))[-LONGEST:]}


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # a thread reads stdin, which the interpreter would wait for
