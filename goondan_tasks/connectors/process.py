"""The process of one run of a connector, seen from the program that has started it: see :mod:`.child`."""

import array
import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import structlog

from broker_config.process_group import ProcessGroup
from goondan_tasks.connectors.child import MAX_MESSAGE_BYTES
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine.javascript import STARTED_IN, find_runtime, is_javascript, missing_runtime
from goondan_tasks.machine.process import child_environment

logger = structlog.get_logger("goondan.connector")

#: the limit of a printed line
LONGEST_LINE = 65_536
#: of messages that it has not read
MAX_UNREAD_BYTES = 67_108_864
#: how soon the end of a process is noticed whose children still hold its descriptors
_LOOK_SECONDS = 0.5
_READ_BYTES = 65_536
#: fields of log lines that are not the connector's
_TAKEN = frozenset({"event", "self", "exc_info", "stack_info", "logger", "level", "timestamp", "method_name"})


@dataclass(frozen=True, slots=True)
class ConnectorProgram:
    """What is run: a connector's file, with what its Connection gives it."""

    entry: Path
    connection: str
    connector: str
    config: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    #: the setting ``GOONDAN_JAVASCRIPT``
    javascript: str | None = None
    #: whether it gets the lines of this program's standard input
    reads_lines: bool = False
    #: whether it answers requests
    answers_http: bool = False
    #: for Connectors of the older version: what the entry is called for, and with (:mod:`.triggers`)
    called: JsonObject | None = field(default=None, repr=False)

    def triggers(self, kind: str) -> list[int]:
        """Return the numbers of the triggers of a type."""
        declared = self.called["triggers"] if self.called else []
        return [number for number, one in enumerate(declared) if one["type"] == kind]

    def command(self, descriptor: int) -> list[str]:
        """Return the command of its process, which writes messages to ``descriptor``.

        Raises:
            ConfigError: it is TypeScript or JavaScript, and nothing here runs it.
        """
        if not is_javascript(self.entry):
            return [sys.executable, "-P", "-m", "goondan_tasks.connectors.child", str(descriptor)]
        runtime = find_runtime(self.javascript)
        if runtime is None:
            raise ConfigError(f"{self.entry}: {missing_runtime(self.javascript)}.")
        return runtime.connector(self.entry.parent, descriptor)

    @property
    def started_in(self) -> Path:
        """The directory in which its process must be started."""
        return STARTED_IN if is_javascript(self.entry) else self.entry.parent

    @property
    def start(self) -> JsonObject:
        """The first message to the process."""
        return {
            "type": "start",
            "entry": str(self.entry),
            "connection": self.connection,
            "connector": self.connector,
            "config": dict(self.config),
            "secrets": dict(self.secrets),
            "http": self.answers_http,
            **({} if self.called is None else {"called": self.called}),
        }


class ConnectorProcess:
    """A started process. One thread reads its messages; any thread may write, stop or kill."""

    def __init__(self, program: ConnectorProgram) -> None:
        """Start it.

        Raises:
            ConfigError: nothing here runs the entry's language.
            OSError: it cannot be started.
        """
        read, written = os.pipe()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, read)
            try:
                #: with all that it starts
                self._group = on_failure.enter_context(ProcessGroup())
                self._process = self._group.start(
                    program.command(written),
                    cwd=program.started_in,
                    env={**child_environment(), "PYTHONUNBUFFERED": "1"},
                    output=subprocess.PIPE,
                    input=subprocess.PIPE,
                    inherited=[written],
                )
            finally:
                os.close(written)
            on_failure.pop_all()
        self._said = read
        self._unread = bytearray()
        #: how much is left to read, once the process has ended: what it has forked may write for ever
        self._left: int | None = None
        self._poll = select.poll()
        self._poll.register(read, select.POLLIN)
        #: what was wrong with a message of it
        self.fault: str | None = None
        self._unwritten: SimpleQueue[bytes] = SimpleQueue()
        self._unwritten_bytes, self._counting = 0, threading.Lock()
        self._is_closing = threading.Event()
        self.log = logger.bind(connection=program.connection, connector=program.connector)
        self._printing = threading.Thread(target=self._log_lines, daemon=True)
        self._printing.start()
        self._writing = threading.Thread(target=self._write_all, daemon=True)
        self._writing.start()
        self.write(program.start)

    def write(self, message: JsonObject) -> None:
        """Send a message without waiting; one to a process that has ended is dropped."""
        data = json.dumps(message).encode() + b"\n"
        with self._counting:
            self._unwritten_bytes += len(data)
            is_too_much = self._unwritten_bytes > MAX_UNREAD_BYTES
        if not is_too_much:
            self._unwritten.put(data)
        elif self._process.poll() is None:
            self.fault = "It does not read what it is sent."
            self.kill()

    def _write_all(self) -> None:
        """Write messages until the end. The pipe may be full, and children of the process keep it open."""
        assert self._process.stdin is not None  # noqa: S101 - it was requested
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        with contextlib.suppress(OSError):
            while data := self._unwritten.get():
                size = len(data)
                while data and not self._is_closing.is_set():
                    if poll.poll(1000 * _LOOK_SECONDS):
                        data = data[os.write(descriptor, data) :]
                with self._counting:
                    self._unwritten_bytes -= size

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield its messages until it ends; one that cannot be read ends it."""
        while line := self._line():
            try:
                message = json.loads(line)
                kind = message["type"]
            except (ValueError, TypeError, KeyError, RecursionError):
                is_long = len(line) > MAX_MESSAGE_BYTES
                shown = f"one of more than {MAX_MESSAGE_BYTES:,} bytes" if is_long else repr(line[:200])
                self.fault = f"It wrote a message that cannot be read: {shown}."
                self.kill()
                return
            if kind == "log":
                self._write_line(message)
            else:
                yield message

    def _line(self) -> bytes:
        """Return the next line, or the beginning of one that is too long; nothing when all is read."""
        while (end := self._unread.find(b"\n")) < 0 and len(self._unread) <= MAX_MESSAGE_BYTES:
            if self._left is None and self._process.poll() is not None:
                self._left = _readable(self._said)
            if self._left == 0:
                return b""
            if not self._poll.poll(1000 * _LOOK_SECONDS):
                continue
            data = os.read(self._said, min(_READ_BYTES, self._left or _READ_BYTES))
            if not data:
                return b""
            self._left = None if self._left is None else self._left - len(data)
            self._unread += data
        line = bytes(self._unread[: end + 1 or None])
        del self._unread[: len(line)]
        return line

    def stop(self) -> None:
        """Ask it to end."""
        self.write({"type": "stop"})

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Return its exit code, ``None`` if it runs on after that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it and all that it has started, and close what leads to it."""
        self._group.close()
        self._process.wait()
        os.close(self._said)
        self._is_closing.set()
        self._unwritten.put(b"")
        self._writing.join()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None  # noqa: S101 - it was requested
            self._process.stdin.close()
        self._printing.join(1.0)  # a child with a session of its own may hold the output open

    def _log_lines(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was requested
        with self._process.stdout as printed:
            while line := printed.readline(LONGEST_LINE):
                self.log.info("connector.printed", line=line.decode("utf-8", "replace").rstrip())

    def _write_line(self, message: Mapping[str, Any]) -> None:
        level, text, fields = message.get("level"), str(message.get("message")), message.get("fields")
        write = getattr(self.log, level if level in {"debug", "info", "warning", "error"} else "info")
        own = fields if isinstance(fields, dict) else {}
        is_taken = {name: name in _TAKEN or name.startswith("_") for name in own}
        write(text, **{f"{name.lstrip('_')}_" if is_taken[name] else name: own[name] for name in own})


def _readable(descriptor: int) -> int:
    """Return how many bytes a pipe holds."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
