"""The transports of MCP connections: a program's stdin and stdout, or streamable HTTP.

The SDK's ``stdio_client`` ends a server only on request. A program started here ends with its worker, even
after ``kill -9``, and so do its grandchildren (:mod:`workers.processes.process_guard`). Messages are lines of
JSON (MCP 2025-11-25, basic/transports#stdio).
"""

import asyncio
import contextlib
import os
import re
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.machine.process import child_environment
from workers.concurrency.threads import on_new_thread
from workers.processes.programs import GUARD_SECONDS, Guard, describe_end, exit_code

# An unreadable answer fails its call at once; otherwise the call would wait for its time limit.
#: how much of both ends of invalid JSON is searched for the id; searching all of a large result would block
#: the other servers
END_BYTES = 1024
_MEMBER = rb'\s*"(?:[^"\\]|\\.)*+"\s*+:\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s"\[\]{},:]++)\s*+'
#: the members before and after the result, which are neither objects nor arrays
_BEFORE = re.compile(rb"\s*\{((?:" + _MEMBER + rb',)*)\s*"(?:result|error)"\s*:')
_AFTER = re.compile(rb"((?:," + _MEMBER + rb")++)\}\s*\Z")


def read_message(line: bytes) -> JSONRPCMessage | None:
    """Return the message in a line; for an unreadable answer, an error response to its call.

    ``None`` if it is neither. An answer is an object with an ``id``, and a ``result`` or an ``error``.
    """
    try:
        content = from_json(line)
    except ValueError as fault:
        content, reason = _without_result(line), str(fault)
    else:
        try:
            # validate_json would convert the whole line once for each kind of message
            return jsonrpc_message_adapter.validate_python(content, by_name=False)
        except ValidationError:
            reason = "it is not a response of JSON-RPC"
    if not isinstance(content, dict) or not content.keys() & {"result", "error"}:
        return None
    number = content.get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    message = f"its answer cannot be read: {reason}"
    return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=message))


def _without_result(line: bytes) -> object:
    """Rebuild an answer from its first and last bytes, with 0 as its result; ``None`` if it is not one."""
    before = _BEFORE.match(line, 0, END_BYTES)
    if before is None:
        return None
    after = _AFTER.search(line, max(before.end(), len(line) - END_BYTES))
    try:
        # the last of equal members counts, and the end of a truncated line may be a part of the result
        return from_json(b'{"result":0%b,%b"":0}' % (after[1] if after else b"", before[1]))
    except ValueError:
        return None


#: the longest message that is read; a longer one ends the connection
MESSAGE_BYTES = 32 * 1024 * 1024
#: how long a server may take to end after the end of its input
STOP_SECONDS = 1.0
#: how much of the last lines on its standard error is kept
KEPT_LINES = 5
KEPT_CHARACTERS = 300
_LINE_BYTES = 65_536


class MessageTooLongError(httpx2.StreamError):
    """The server sent a message of more than :data:`MESSAGE_BYTES`.

    The SDK answers the request of such a response with an error; other exceptions would end the connection.
    """

    def __init__(self) -> None:
        super().__init__(f"it sent a message of more than {MESSAGE_BYTES} bytes")


Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True)
class Command:
    """A server's command. ``env`` is added to a minimal environment, not to the worker's."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None


class StdioTransport:
    """A server process (``mcp.client.Transport``); leaving the block ends its whole tree."""

    def __init__(
        self,
        command: Command,
        *,
        on_end: Callable[[], object],
        on_line: Callable[[str], object],
        hide: Callable[[str], str],
    ) -> None:
        """``on_end`` is called at the end of the server's output, ``on_line`` with each line of its log.

        ``hide`` masks secrets in a line before it is cut: half a secret would not be recognised.
        """
        self._command = command
        self._on_end = on_end
        self._on_line = on_line
        self._hide = hide
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._tasks: list[asyncio.Task[None]] = []
        self._pipes: list[asyncio.BaseTransport] = []
        #: why reading stopped, if the server did not end
        self._broken = ""
        #: how the server ended; empty while it runs
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
                env={**child_environment(), **self._command.env},
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

    async def __aexit__(self, *_: object) -> None:
        """End the server: close its input, then SIGTERM, then SIGKILL."""
        with contextlib.ExitStack() as cut_short:
            cut_short.callback(self._abandon)
            report = await self._ended()
            cut_short.pop_all()
        for pipe in self._pipes:
            pipe.close()
        with self._guard:
            self.end = self._describe(report.decode())

    async def _ended(self) -> bytes:
        """End the server and return its guard's report; by then all output has been read."""
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
        """End the server without waiting, after a cancel."""
        for task in self._tasks:
            task.cancel()
        for pipe in self._pipes:
            pipe.close()
        self._guard.break_lifeline()
        on_new_thread(self._reap)

    def _reap(self) -> None:
        with contextlib.suppress(OSError):  # the program could not be started
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
        """Forward the server's messages; other lines belong to its log."""
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
            self._broken = str(MessageTooLongError())
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
            except ValueError:  # the line is too long: drop it
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


#: the limit for connecting and sending; an answer may take as long as its call
CONNECT_SECONDS = 15.0

#: the characters that are allowed in the value of a header
_SENT = re.compile(r"[\t\x20-\x7e]*")


def sent_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as they are sent: white space around a value is not part of it (RFC 9110, §5.5).

    Raises:
        ConfigError: a value cannot be sent; the message does not contain it.
    """
    sent = {name: value.strip() for name, value in headers.items()}
    for name, value in sent.items():
        if _SENT.fullmatch(value) is None:
            raise ConfigError(
                f"headers.{name}: the value has a line end or another character that no header may have",
                suggestion="Look at the variable or the secret that it is taken from.",
            )
    return sent


#: the code of an error for a session that the server has forgotten, which is ours
SESSION_GONE = -32_099
_SESSION_ID = "mcp-session-id"
_SESSION_FAULT = re.compile(r"(?i)\bsession\b")
#: what to do, by status
_REMEDIES = {
    401: "Check the credentials in the server's headers",
    403: "The credentials in the server's headers do not permit this",
    404: "Check the server's url",
    405: "Check the server's url: no MCP server answers there",
    407: "The proxy wants credentials",
    413: "Send smaller arguments",
    429: "Call less often",
}
#: how much of a body is shown
_BODY_CHARACTERS = 200


class _LimitedResponse(httpx2.Response):
    """A response that is limited when it is read as a whole; events have a limit of their own."""

    _is_read_whole = False

    async def aread(self) -> bytes:
        """Read the body.

        Raises:
            MessageTooLongError: it is too long once it is decompressed.
        """
        self._is_read_whole = True
        return await super().aread()

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        size = 0
        async with aclosing(super().aiter_bytes(chunk_size)) as pieces:
            try:
                async for piece in pieces:
                    size += len(piece)
                    if self._is_read_whole and size > MESSAGE_BYTES:
                        raise MessageTooLongError
                    yield piece
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                raise httpx2.StreamError(f"it broke off: {type(error).__name__}: {error}") from error


class _Refusal(_LimitedResponse):
    """A response that refuses a request: its body is an error of JSON-RPC with the status and what to do.

    The SDK passes on the body of such an error, and no status.
    """

    async def aread(self) -> bytes:
        """Return the error of JSON-RPC."""
        body = await super().aread()
        return JSONRPCError(jsonrpc="2.0", id=None, error=self._error(body)).model_dump_json().encode()

    def _error(self, body: bytes) -> ErrorData:
        given = _error_in(body)
        if given is not None and given.code in (METHOD_NOT_FOUND, INVALID_PARAMS):
            return given  # the status says no more (MCP 2026-07-28)
        is_in_session = _SESSION_ID in self.request.headers
        if is_in_session and (
            self.status_code == 404
            or (self.status_code == 400 and given is not None and _SESSION_FAULT.search(given.message))
        ):
            return ErrorData(code=SESSION_GONE, message="it has forgotten the session")
        if given is not None and self.status_code not in _REMEDIES and self.status_code < 500:
            return given
        text = given.message if given is not None else self._excerpt(body)
        remedy = _REMEDIES.get(self.status_code, "Try again later" if self.status_code >= 500 else "")
        if (wait := self.headers.get("retry-after", "")).isdecimal():
            remedy = f"Try again after {wait[:9]} s"
        status = f"HTTP {self.status_code} {self.reason_phrase}".strip()
        what = status if text in ("", self.reason_phrase) else f"{status}: {text}"
        return ErrorData(code=INTERNAL_ERROR, message=f"{what.rstrip('.')}. {remedy}" if remedy else what)

    def _excerpt(self, body: bytes) -> str:
        """Return the beginning of a body that is plain text."""
        kind = self.headers.get(_OWN_TYPE, "")
        if not kind.startswith(("text/plain", "application/json")):
            return ""
        text = " ".join(body[: 4 * _BODY_CHARACTERS].decode(errors="replace").split())
        return text if len(text) <= _BODY_CHARACTERS else f"{text[: _BODY_CHARACTERS - 1]}…"


#: keeps the type of a refusal's body
_OWN_TYPE = "x-goondan-content-type"


def _error_in(body: bytes) -> ErrorData | None:
    """Return the error of JSON-RPC in a body, if it is one."""
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return None
    return message.error if isinstance(message, JSONRPCError) else None


async def _limit(response: httpx2.Response) -> None:
    """Limit a response. A transport that makes limited ones would replace the proxies of the environment."""
    is_refusal = response.status_code >= 400 and response.request.method == "POST"
    response.__class__ = _Refusal if is_refusal else _LimitedResponse
    if is_refusal:
        response.headers[_OWN_TYPE] = response.headers.get("content-type", "").lower()
        response.headers["content-type"] = "application/json"


class _Client(httpx2.AsyncClient):
    """A client that answers a request whose connection breaks with an error of JSON-RPC.

    The SDK would end the whole transport, and with it all other requests, which have connections of their
    own. Until the server has answered once, errors are raised: they say why it cannot be reached.
    """

    _has_answered = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "POST" or not self._has_answered:
                raise
            lost = ErrorData(code=CONNECTION_CLOSED, message=f"{type(error).__name__}: {error}")
            body = JSONRPCError(jsonrpc="2.0", id=None, error=lost).model_dump_json()
            headers = {"content-type": "application/json"}
            return httpx2.Response(503, headers=headers, content=body.encode(), request=request)
        self._has_answered = True
        return response


class HttpTransport:
    """A connection over streamable HTTP (``mcp.client.Transport``).

    Redirects are followed only within the server's origin, so no other host sees ``headers``.
    """

    end = ""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._open = AsyncExitStack()

    async def __aenter__(self) -> TransportStreams:
        """Open the client; nothing is sent yet."""
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
        client = await self._open.enter_async_context(
            _Client(headers=dict(self._headers), timeout=timeout, event_hooks={"response": [_limit]})
        )
        # do not end the session on exit: a server that hangs would not answer
        return await self._open.enter_async_context(
            streamable_http_client(
                self._url, http_client=client, terminate_on_close=False, max_sse_event_size=MESSAGE_BYTES
            )
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Drop the connection."""
        return await self._open.__aexit__(kind, error, traceback)
