"""The child process of isolated tools: it runs the handlers of one entry file, one call at a time.

:mod:`workers.processes.isolation` starts it below a guard (:mod:`workers.processes.process_guard`) with a
socket as its standard output. An order is one JSON object. The child answers with ``[call, kind, body]``,
where kind is ``began``, ``log``, ``record``, ``progress`` or ``output``, and last ``value``, ``pending``,
``error`` or ``out-of-memory``. The worker writes what a tool logs, with the call's fields. What a tool prints
goes unchanged to the worker's standard error.

The process stays alive between calls, and keeps the state of the handlers' modules. Directory, environment,
umask, alarm and the SIGTERM handler are restored for each call.

To start quickly, it imports neither Celery, Redis and structlog nor the YAML of bundles.
"""

import asyncio
import contextlib
import contextvars
import inspect
import io
import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

from broker_config import serializer
from goondan_tasks.authoring.tool_api import ToolContext, ToolHandler
from goondan_tasks.contract.errors import GoondanError, PayloadTooLargeError
from goondan_tasks.contract.failure import describe, traceback_text
from goondan_tasks.contract.messages import JsonObject, Message
from goondan_tasks.contract.output import emit_nowhere, encoded_output, pending_of, report_of
from goondan_tasks.machine.process import own_environment
from workers.forks import claim_process
from workers.handlers import find_handler
from workers.outcome import outcome_of
from workers.processes.channel import ChildChannel
from workers.processes.frames import LONGEST_LINE, MOST_FIELDS
from workers.processes.programs import ProcessRunner
from workers.reporters import Answered, OutputEmitter

#: characters of a field whose line is too long, or which is not JSON
_LONGEST_SHOWN = 10_000


class ChannelLogger:
    """The Logger of a call in the child: the worker writes the lines, with the call's fields.

    ``log`` receives ``[level, event, fields]``.
    """

    def __init__(self, log: Callable[[list[Any]], None]) -> None:
        self._log = log

    def _write(self, level: str, /, event: str, *args: Any, **fields: Any) -> None:
        text = str(event)
        self._log([level, (text % args if args else text)[:LONGEST_LINE], _loggable(fields)])

    debug = partialmethod(_write, "debug")
    info = partialmethod(_write, "info")
    warning = partialmethod(_write, "warning")
    error = partialmethod(_write, "error")


class ChannelHandler(logging.Handler):
    """Sends what the tool logs with ``logging`` or structlog to the worker, as lines of the current call."""

    def __init__(self, channel: ChildChannel) -> None:
        super().__init__()
        self._channel = channel
        self.call = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send ``[logger, level, event, fields]``."""
        try:
            if isinstance(record.msg, dict):
                fields = _loggable({**record.msg})
                event = str(fields.pop("event", ""))
            else:
                event = record.getMessage()
                fields = _loggable({"exc_info": record.exc_info and record.exc_info[1]})
            line = [str(record.name), record.levelno, event[:LONGEST_LINE], fields]
            self._channel.send(serializer.encode([self.call, "record", line], repairs=True))
        except (
            OSError,
            TypeError,
            ValueError,
        ):  # its arguments do not fit, or the tool has forked this process
            self.handleError(record)

    def take_structlog(self) -> None:
        """Handle structlog's lines too, if the entry file imports it without configuring it."""
        structlog: Any = sys.modules.get("structlog")
        if structlog is not None and not structlog.is_configured():
            structlog.configure(
                processors=[
                    structlog.stdlib.filter_by_level,
                    structlog.stdlib.PositionalArgumentsFormatter(),
                    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
                ],
                wrapper_class=structlog.stdlib.BoundLogger,
                logger_factory=structlog.stdlib.LoggerFactory(),
            )


def _loggable(fields: JsonObject) -> JsonObject:
    """Format the traceback, which only this process has; if a field is not JSON, replace all by ``repr``."""
    if exc_info := fields.pop("exc_info", None):
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
        fields["exception"] = "".join(traceback.format_exception(error)).strip()
    try:
        if len(serializer.encode(fields, serializer.DEEPEST, repairs=True)) <= LONGEST_LINE:
            return fields
    except serializer.NotJsonError:
        pass
    chosen = list(fields.items())[:MOST_FIELDS]
    return {
        name: (value if isinstance(value, str) else repr(value))[:_LONGEST_SHOWN] for name, value in chosen
    }


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Directory, environment, umask and SIGTERM handler, which must not leak from call to call."""

    #: a descriptor, because the path may lead elsewhere later
    directory: int
    environment: dict[str, str]
    umask: int
    on_sigterm: Any

    @classmethod
    def now(cls) -> "ProcessState":
        """Save the current state, on the main thread."""
        umask = os.umask(0)
        os.umask(umask)
        environment = dict(os.environ)  # noqa: TID251 - saved for the next call, not read
        return cls(os.open(".", os.O_RDONLY), environment, umask, signal.getsignal(signal.SIGTERM))

    def restore(self) -> None:
        """Restore the state and cancel a pending alarm."""
        os.fchdir(self.directory)
        environment = os.environ  # noqa: TID251 - restored as it was
        if environment != self.environment:
            environment.clear()
            environment.update(self.environment)
        os.umask(self.umask)
        signal.alarm(0)
        signal.signal(signal.SIGTERM, self.on_sigterm)


_MEGABYTE = 1_048_576
#: the least memory that importing an entry file takes
_LEAST_BYTES = 4 * _MEGABYTE


def main(entry: str, memory_mb: str, log_level: str) -> None:
    """Run calls until the worker closes the channel or SIGTERM arrives."""
    channel = _private_channel()
    if memory_mb != "0":
        _limit_memory(int(memory_mb))
    log = ChannelHandler(channel)
    logging.basicConfig(handlers=[log], level=int(log_level))
    claim_process()
    IsolatedChild(channel, Path(entry), log).serve()


class Stop(SystemExit):
    """The guard's SIGTERM: the call is past its limit or cancelled, or the child is no longer needed.

    As a SystemExit, it also leaves an event loop. ``finally`` blocks have one second.
    """


class IsolatedChild:
    """Runs the calls of one channel in order."""

    def __init__(self, channel: ChildChannel, entry: Path, log: ChannelHandler) -> None:
        self._channel = channel
        self._log = log
        self._entry = entry
        self._handlers: dict[str, ToolHandler] = {}
        self._state: ProcessState | None = None
        #: runs all async handlers: connections that a module keeps belong to the loop that they began in
        self._runner = asyncio.Runner()
        self._is_stopping = False
        #: of the call that runs
        self._emit: OutputEmitter[bytes] | None = None

    def serve(self) -> None:
        """Run calls until the channel is closed."""
        signal.signal(signal.SIGTERM, self._stop)
        with self._runner, contextlib.suppress(ConnectionError):  # the worker has closed it, or died
            while True:
                self._channel.send(self._answer(serializer.decode(self._channel.receive())))

    def _stop(self, _number: int, _frame: Any) -> None:
        self._is_stopping = True
        raise Stop(128 + signal.SIGTERM)

    def _answer(self, order: JsonObject) -> bytes:
        outcome = outcome_of(partial(self._answer_with_value, order))
        if self._emit is not None:
            self._emit.flush()
        call, error = order["call"], outcome.error
        if error is None and len(outcome.get()) > order["maxMessageBytes"]:
            error = PayloadTooLargeError(
                f"The output takes {len(outcome.get())} bytes; "
                f"at most {order['maxMessageBytes']} are allowed from an isolated handler."
            )
        if error is None or isinstance(error, Stop):
            return outcome.get()
        if isinstance(error, MemoryError):
            return serializer.encode([call, "out-of-memory", None])
        described = describe(error, help_url=order["helpUrl"], message_limit=order["messageLimit"])
        body = described.to_wire()
        if not isinstance(error, GoondanError):
            body["traceback"] = traceback_text(error)
        return serializer.encode([call, "error", body], repairs=True)

    def _answer_with_value(self, order: JsonObject) -> bytes:
        call, tool, value = order["call"], order["tool"], self._run(order)
        pending = pending_of(value)
        if pending is not None:
            fields = {name: getattr(pending, name) for name in ("handle", "output", "ttl_seconds")}
            return b'[%d,"pending",%b]' % (call, encoded_output(fields, tool).data)
        return b'[%d,"value",%b]' % (call, encoded_output(value, tool).data)

    def _run(self, order: JsonObject) -> Any:
        self._log.call = order["call"]
        handler = self._handler(order["tool"], order["export"])
        self._log.take_structlog()
        # saved after the import, so that what the entry file sets is part of the state
        self._state = self._state or ProcessState.now()
        self._state.restore()
        self._emit = None
        context = self._context(order["context"], order["call"], order["limitSeconds"])
        self._say(order["call"], "began")
        value = handler(context, order["args"])
        if not inspect.isawaitable(value):
            return value
        return self._runner.run(_awaited(value), context=contextvars.copy_context())

    def _handler(self, tool: str, export: str) -> ToolHandler:
        if export not in self._handlers:
            self._handlers[export] = find_handler(self._entry, tool, export)
        return self._handlers[export]

    def _context(self, wire: JsonObject, call: int, limit_seconds: float) -> ToolContext:
        workdir, callback_url = Path(wire["workdir"]), wire["callbackUrl"]
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
            run_process=ProcessRunner(workdir, deadline, environment=own_environment),
            progress=lambda *report, **named: self._say(
                call, "progress", serializer.decode(report_of(*report, **named))
            ),
            emit=self._emitter(call) if wire["followed"] else emit_nowhere,
            deadline=deadline,
            _is_cancelled=lambda: self._is_stopping,
            **({} if callback_url is None else {"_callback_url": lambda: callback_url}),
        )

    def _emitter(self, call: int) -> OutputEmitter[bytes]:
        """Make the ``emit`` of a call; it joins what is emitted often, and the worker does the rest."""

        def send(message: bytes, answered: Answered) -> None:
            with contextlib.suppress(OSError):  # the worker has closed the channel, or a fork of this process
                self._channel.send(message)
            answered(1)

        self._emit = OutputEmitter(
            {"call": call}, lambda events: b'[%d,"output",%b]' % (call, events), send, _later
        )
        return self._emit

    def _say(self, call: int, kind: str, body: Any = None) -> None:
        self._channel.send(serializer.encode([call, kind, body], repairs=True))


def _later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _private_channel() -> ChildChannel:
    """Move the socket away from standard output, out of reach of forks and programs."""
    connection = socket.socket(fileno=os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.register_at_fork(after_in_child=connection.close)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a crash takes what is not written yet
    return ChildChannel(connection)


def _limit_memory(megabytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = min(megabytes * _MEGABYTE, sys.maxsize if most == resource.RLIM_INFINITY else most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bytearray(_LEAST_BYTES)  # too little memory fails here, rather than obscurely in the import
