"""The child process of isolated tools: it runs the handlers of one entry file, one call at a time.

:mod:`workers.processes.children` starts it below a guard (:mod:`workers.processes.process_guard`) with a
socket as its standard output. An order comes as one JSON object; ``[call, kind, body]`` goes back, with
these kinds: ``began``, ``log``, ``progress``, and last ``value``, ``pending``, ``error`` or
``out-of-memory``. What a tool prints goes to the worker's standard error.

Between calls the process stays, and with it what handlers keep in their modules. Directory, environment,
umask, alarm and the answer to SIGTERM are put back for the next call.

It must start quickly: neither Celery, Redis and structlog nor the YAML of bundles are imported.
"""

import asyncio
import inspect
import io
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from broker_config import serializer
from goondan_tasks.failure import describe
from goondan_tasks.messages import JsonObject, Message
from goondan_tasks.output import encoded_output
from goondan_tasks.pending import Pending, pending_of
from goondan_tasks.progress import report_of
from goondan_tasks.tool_api import ToolContext, ToolHandler
from workers.handlers import find_handler
from workers.processes.channel import Channel
from workers.processes.channel_logger import ChannelLogger
from workers.processes.process_state import ProcessState
from workers.processes.processes import ProcessRunner

_MEGABYTE = 1_048_576
#: what importing an entry file takes at least
_LEAST_BYTES = 4 * _MEGABYTE


def main(entry: str, memory_mb: str) -> None:
    """Serve until the worker closes the channel, or SIGTERM."""
    channel = _private_channel()
    if memory_mb != "0":
        _limit_memory(int(memory_mb))
    IsolatedChild(channel, Path(entry)).serve()


class Stop(SystemExit):
    """The guard's SIGTERM: the limit is over, or the call cancelled, or the child not needed any more.

    As a kind of SystemExit it also leaves an event loop; ``finally`` blocks have a second.
    """


class IsolatedChild:
    """Runs one call after the other."""

    def __init__(self, channel: Channel, entry: Path) -> None:
        self._channel = channel
        self._entry = entry
        self._handlers: dict[str, ToolHandler] = {}
        self._state: ProcessState | None = None
        self._is_stopping = False

    def serve(self) -> None:
        """Run the calls that come."""
        signal.signal(signal.SIGTERM, self._stop)
        while True:
            try:
                order = serializer.decode(self._channel.receive())
            except ConnectionError:
                return
            self._channel.send(self._answer(order))

    def _stop(self, _number: int, _frame: Any) -> None:
        self._is_stopping = True
        raise Stop(128 + signal.SIGTERM)

    def _answer(self, order: JsonObject) -> bytes:
        call, tool = order["call"], order["tool"]
        try:
            value = self._run(order)
            pending = pending_of(value)
            if pending is not None:
                return b'[%d,"pending",%b]' % (call, encoded_output(_fields(pending), tool))
            return b'[%d,"value",%b]' % (call, encoded_output(value, tool))
        except Stop:
            raise
        except MemoryError:
            return serializer.encode([call, "out-of-memory", None])
        except BaseException as error:  # noqa: BLE001 - the executor's boundary, on this side of the channel
            described = describe(error, help_url=order["helpUrl"], message_limit=order["messageLimit"])
            return serializer.encode([call, "error", described.to_wire()])

    def _run(self, order: JsonObject) -> Any:
        handler = self._handler(order["tool"], order["export"])
        # what the entry file sets while it is imported stays
        self._state = self._state or ProcessState.now()
        self._state.restore()
        context = self._context(order["context"], order["call"], order["limitSeconds"])
        self._say(order["call"], "began")
        value = handler(context, order["args"])
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    def _handler(self, tool: str, export: str) -> ToolHandler:
        if export not in self._handlers:
            self._handlers[export] = find_handler(self._entry, tool, export)
        return self._handlers[export]

    def _context(self, wire: JsonObject, call: int, limit_seconds: float) -> ToolContext:
        workdir = Path(wire["workdir"])
        deadline = datetime.now(UTC) + timedelta(seconds=limit_seconds)
        return ToolContext(
            agent_name=wire["agentName"],
            instance_key=wire["instanceKey"],
            turn_id=wire["turnId"],
            trace_id=wire["traceId"],
            tool_call_id=wire["toolCallId"],
            message=Message.from_wire(wire["message"]),
            workdir=workdir,
            logger=ChannelLogger(lambda line: self._say(call, "log", line)),
            run_process=ProcessRunner(workdir, deadline),
            progress=lambda *report, **named: self._say(
                call, "progress", serializer.decode(report_of(*report, **named))
            ),
            deadline=deadline,
            _is_cancelled=lambda: self._is_stopping,
            **_callback(wire["callbackUrl"]),
        )

    def _say(self, call: int, kind: str, body: Any = None) -> None:
        self._channel.send(serializer.encode([call, kind, body]))


def _fields(pending: Pending) -> JsonObject:
    return {"handle": pending.handle, "output": pending.output, "ttl_seconds": pending.ttl_seconds}


def _callback(url: str | None) -> JsonObject:
    return {} if url is None else {"_callback_url": lambda: url}


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _private_channel() -> Channel:
    """Take the socket away from standard output, and out of reach of forks and programs."""
    connection = socket.socket(fileno=os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.register_at_fork(after_in_child=connection.close)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a crash takes what is not written yet
    return Channel(connection)


def _limit_memory(megabytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = min(megabytes * _MEGABYTE, sys.maxsize if most == resource.RLIM_INFINITY else most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bytearray(_LEAST_BYTES)  # too little memory shows here, and not in the import as something else
