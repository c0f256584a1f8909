"""An MCP server as a program below a guard, spoken to by its standard input and output.

The SDK's own ``stdio_client`` ends its server when it is asked to; what this one starts ends with the worker
too, ``kill -9`` included, grandchildren as well (:mod:`workers.processes.process_guard`).
Messages are lines of JSON (MCP 2025-11-25, basic/transports#stdio).
"""

import asyncio
import contextlib
import os
import subprocess
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from workers.concurrency.threads import on_new_thread
from workers.mcp.wire import read_message
from workers.processes.programs import GUARD_SECONDS, Guard, describe_end, exit_code

#: the longest message that is read; a longer one ends the connection
MESSAGE_BYTES = 32 * 1024 * 1024
#: how long a server may take to end by itself when its input has ended
STOP_SECONDS = 1.0
#: what is kept of the last lines on its standard error
KEPT_LINES = 5
KEPT_CHARACTERS = 300
_LINE_BYTES = 65_536

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a server. ``env`` is added to a minimal environment, never to the worker's."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None


class StdioTransport:
    """One life of a server (``mcp.client.Transport``); once left, nothing of it is alive."""

    def __init__(
        self,
        command: Command,
        *,
        on_end: Callable[[], object],
        on_line: Callable[[str], object],
        hide: Callable[[str], str],
    ) -> None:
        """``on_end`` is called when the server says no more; ``on_line`` with what it tells its log.

        ``hide`` takes secrets out of that before it is cut: half of a secret would not be recognised.
        """
        self._command = command
        self._on_end = on_end
        self._on_line = on_line
        self._hide = hide
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._tasks: list[asyncio.Task[None]] = []
        self._pipes: list[asyncio.BaseTransport] = []
        #: why no more is read, if it is for another reason than the server's end
        self._broken = ""
        #: how the server ended; empty while it lives
        self.end = ""

    async def __aenter__(self) -> Streams:
        """Start the server.

        Raises:
            OSError: its guard cannot be started.
        """
        source, stdin = os.pipe()
        try:
            self._guard = Guard(
                self._command.argv,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._command.cwd,
                env={**get_default_environment(), **self._command.env},
            )
        except OSError:
            os.close(stdin)
            raise
        finally:
            os.close(source)
        with contextlib.ExitStack() as cut_short:
            pipe = os.fdopen(stdin, "wb", 0)
            cut_short.callback(pipe.close)
            cut_short.callback(self._abandon)
            streams = await self._connect(pipe)
            cut_short.pop_all()
        return streams

    async def _connect(self, stdin: IO[bytes]) -> Streams:
        process = self._guard.process
        self._stdin = await self._writer(stdin)
        self._report = await self._reader(os.fdopen(os.dup(self._guard.report), "rb", 0))
        stdout = await self._reader(process.stdout, MESSAGE_BYTES)
        stderr = await self._reader(process.stderr)
        received, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        self._start(self._receive(stdout, received))
        self._start(self._send(to_send))
        self._start(self._listen(stderr))
        return incoming, outgoing

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Have the server end: by the end of its input, by SIGTERM, by SIGKILL, whatever helps."""
        with contextlib.ExitStack() as cut_short:
            cut_short.callback(self._abandon)
            report = await self._ended()
            cut_short.pop_all()
        for pipe in self._pipes:
            pipe.close()
        with self._guard:
            self.end = self._describe(report.decode())

    async def _ended(self) -> bytes:
        """Return what the guard reports of the end; everything is read by then."""
        ended = asyncio.ensure_future(self._report.read())
        self._stdin.close()
        await asyncio.wait([ended], timeout=STOP_SECONDS)
        if not ended.done():
            self._guard.break_lifeline()
            await asyncio.wait([ended], timeout=GUARD_SECONDS)
        if not ended.done():
            self._guard.process.kill()
        report = await ended
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        return report

    def _abandon(self) -> None:
        """Have the server end while nobody waits for that: whoever did was cancelled."""
        for task in self._tasks:
            task.cancel()
        for pipe in self._pipes:
            pipe.close()
        self._guard.break_lifeline()
        on_new_thread(self._reap)

    def _reap(self) -> None:
        with contextlib.suppress(OSError):  # it could not even be started
            self._guard.end()

    def _describe(self, report: str) -> str:
        try:
            how = self._broken or f"it {describe_end(exit_code(report, self._command.argv[0]))}"
        except OSError as error:
            return f"{self._command.argv[0]!r} cannot be started: {error.strerror}"
        return ": ".join((how, " | ".join(self._last_lines))) if self._last_lines else how

    def _start(self, pump: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(pump))

    async def _receive(
        self, stdout: asyncio.StreamReader, received: MemoryObjectSendStream[Incoming]
    ) -> None:
        """Pass on what the server says, line by line; lines that are not messages are for its log."""
        try:
            async with received:
                while line := await stdout.readline():
                    message = read_message(line)
                    if message is not None:
                        await received.send(SessionMessage(message))
                    else:
                        self._note(line)
        except anyio.BrokenResourceError:  # the session is over
            pass
        except ValueError:
            self._broken = f"it sent a message of more than {MESSAGE_BYTES} bytes"
        finally:
            self._on_end()

    async def _send(self, to_send: MemoryObjectReceiveStream[SessionMessage]) -> None:
        with contextlib.suppress(ConnectionError):
            async with to_send:
                async for message in to_send:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._stdin.write(line.encode() + b"\n")
                    await self._stdin.drain()

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # a line without an end: what came of it is dropped
                continue
            if not line:
                return
            self._note(line)

    def _note(self, line: bytes) -> None:
        text = self._hide(line.decode(errors="replace").strip())[:KEPT_CHARACTERS]
        if text:
            self._last_lines.append(text)
            self._on_line(text)

    async def _reader(self, pipe: IO[bytes] | None, limit: int = _LINE_BYTES) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._pipes.append(transport)
        return reader

    async def _writer(self, pipe: IO[bytes]) -> asyncio.StreamWriter:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._pipes.append(transport)
        return asyncio.StreamWriter(transport, protocol, reader, loop)
