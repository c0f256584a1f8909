"""The process of one Connection whose connector is Python: ``python -m goondan_tasks.connectors.child FD``.

It reads messages from stdin and writes its own to the file descriptor FD, each one line of JSON; what the
connector prints goes to the log. It ends when stdin closes, so that it does not outlive the program that
has started it.

======================================================  =====================================================
to the process                                          from the process
======================================================  =====================================================
``{type: start, entry, connection, connector, config,   ``{type: started}``
secrets}``
``{type: answer, id, value}``, or with ``error``         ``{type: ask, id, name, value}``; the names are
``{code, message, suggestion}`` for ``value``            ``emit``, ``cursor.get`` and ``cursor.set``
``{type: stop}``                                         ``{type: log, level, message, fields}``
..                                                       ``{type: ended}``, or with ``error`` and ``trace``
======================================================  =====================================================
"""

import asyncio
import inspect
import itertools
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from goondan_tasks.authoring.connector_api import Accepted, ConnectorEvent
from goondan_tasks.authoring.entry import connect_in, import_entry
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import JsonObject

#: of the texts about an error, in characters
LONGEST = 4_000
_LEVELS = ("debug", "info", "warning", "error")


class Channel:
    """The messages to and from the program that has started this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}

    def write(self, message: JsonObject) -> None:
        """Write a message; one whose reader is gone is dropped, as this process ends then."""
        data = json.dumps(message, default=str).encode() + b"\n"
        with self._writing:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def ask(self, name: str, value: Any) -> "Future[Any]":
        """Ask for something; the future gets the answer, or a ConnectorError."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self.write({"type": "ask", "id": number, "name": name, "value": value})
        return answer

    def answer(self, message: Mapping[str, Any]) -> None:
        """Pass an answer on to who has asked."""
        asked = self._asked.pop(message["id"], None)
        if asked is None or not asked.set_running_or_notify_cancel():
            return
        error = message.get("error")
        if error is None:
            asked.set_result(message.get("value"))
        else:
            asked.set_exception(ConnectorError(error["message"], suggestion=error.get("suggestion")))


class ConnectorLogger:
    """Writes log lines to the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, level: str) -> Callable[..., None]:
        if level not in _LEVELS:
            raise AttributeError(level)

        def write(event: object, /, *args: object, **fields: object) -> None:
            text = str(event) % args if args else str(event)
            self._channel.write({"type": "log", "level": level, "message": text, "fields": fields})

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

    def emit(self, event: ConnectorEvent | Mapping[str, Any]) -> Any:
        """Hand an event over."""
        wire = event.to_wire() if isinstance(event, ConnectorEvent) else event
        return self.wait(_accepted(self.channel.ask("emit", wire)))


def _accepted(answer: "Future[Any]") -> "Future[Any]":
    accepted: Future[Any] = Future()

    def pass_on(one: "Future[Any]") -> None:
        if not accepted.set_running_or_notify_cancel():
            return
        if (error := one.exception()) is not None:
            accepted.set_exception(error)
        else:
            accepted.set_result(Accepted.from_wire(one.result()))

    answer.add_done_callback(pass_on)
    return accepted


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
    try:
        connect = connect_in(import_entry(Path(start["entry"])))
    except BaseException as error:  # noqa: BLE001 - the entry's own code may raise anything
        channel.write({"type": "ended", **_fault(error)})
        return
    channel.write({"type": "started"})
    is_async = inspect.iscoroutinefunction(inspect.unwrap(connect)) or inspect.iscoroutinefunction(
        getattr(connect, "__call__", None)  # noqa: B004 - an object whose method is a coroutine
    )
    ended = _run_async if is_async else _run_plain
    channel.write({"type": "ended", **ended(connect, channel, start, lines)})


def _context(channel: Channel, start: JsonObject, wait: Callable[["Future[Any]"], Any]) -> ChildContext:
    return ChildContext(
        channel,
        start["connection"],
        start["connector"],
        MappingProxyType(start["config"]),
        MappingProxyType(start["secrets"]),
        ConnectorLogger(channel),
        ChildCursor(channel, wait),
        wait,
    )


def _read(lines: Any, channel: Channel, stop: Callable[[], object]) -> None:
    """Take messages until the program that has started this process ends it, or is gone."""
    for line in lines:
        message = json.loads(line)
        if message["type"] == "answer":
            channel.answer(message)
        elif message["type"] == "stop":
            stop()
    os._exit(0)


def _run_async(connect: Callable[..., Any], channel: Channel, start: JsonObject, lines: Any) -> JsonObject:
    async def run() -> JsonObject:
        loop, running = (
            asyncio.get_running_loop(),
            asyncio.ensure_future(cast(Any, connect(_context(channel, start, _in_coroutine)))),
        )
        reader = threading.Thread(
            target=_read,
            args=(lines, channel, lambda: loop.call_soon_threadsafe(running.cancel)),
            daemon=True,
        )
        reader.start()
        await asyncio.wait([running])
        return {} if running.cancelled() else _fault(running.exception())

    try:
        return asyncio.run(run())
    except BaseException as error:  # noqa: BLE001 - such as sys.exit, which leaves the loop
        return _fault(error)


def _run_plain(connect: Callable[..., Any], channel: Channel, start: JsonObject, lines: Any) -> JsonObject:
    """Run a plain function; it cannot be interrupted, so a stop ends the process."""
    threading.Thread(target=_read, args=(lines, channel, lambda: os._exit(0)), daemon=True).start()
    try:
        answer = connect(_context(channel, start, _blocking))
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
