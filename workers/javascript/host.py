"""The worker's side of a host: a process of Node or Bun that runs many handlers at once.

It starts below a guard (:mod:`workers.processes.process_guard`): its whole process tree ends with it, and
with the worker. The messages are those of ``goondan_tasks/node/host.mjs``. Everything here runs on the
worker's event loop.
"""

import asyncio
import contextlib
import contextvars
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from broker_config import serializer
from goondan_tasks.errors import ToolError, ToolOutputError
from goondan_tasks.failure import describe
from goondan_tasks.javascript import Runtime, on_channel
from goondan_tasks.messages import JsonObject
from goondan_tasks.output import bad_output
from goondan_tasks.sandbox import Sandbox
from workers.outcome import awaited_outcome
from workers.processes.isolation import CRASH_SECONDS
from workers.processes.programs import Guard, describe_end

logger = structlog.get_logger("goondan.tool")

#: how long a handler that is aborted may take to end before its call ends without it
ABORT_SECONDS = 0.8
#: how long a host may take to answer a ping before it counts as blocked
PONG_SECONDS = 1.0

#: answers what a handler asks: ``{"runtime.request": …}``
Asked = Mapping[str, Callable[..., Awaitable[Any]]]
#: makes that when a handler asks first: few do
AskedOf = Callable[[], Asked]
#: takes the kind and the body of each message that a running handler causes
OnEvent = Callable[[str, JsonObject], None]


@dataclass(frozen=True, slots=True)
class HostKind:
    """What makes hosts interchangeable: the bundle, the runtime, what they see."""

    root: Path
    runtime: Runtime
    environment: tuple[tuple[str, str], ...] = field(repr=False)
    sandbox: Sandbox | None = None
    memory_mb: int | None = None
    #: whether it runs one call at a time
    is_alone: bool = False
    #: those of extensions are apart: a tool that ends its host does not take them with it
    whose: Literal["tool", "extension"] = "tool"

    def command(self) -> list[str]:
        """Return the command that starts such a host."""
        argv = self.runtime.command("serve", memory_mb=self.memory_mb)
        if self.sandbox is not None:
            # it may be in a home directory, which the sandbox hides, and a link
            program, home = Path(argv[0]).resolve(), dict(self.environment).get("HOME")
            argv = self.sandbox.command(
                [str(program), *argv[1:]], self.sandbox.workdir, home, programs=[program]
            )
        return on_channel(argv)


class HostEndedError(Exception):
    """A host ended before a call in it did."""

    def __init__(self, message: str, *, has_begun: bool, was_alone: bool) -> None:
        super().__init__(message)
        self.message = message
        #: whether the handler may have begun
        self.has_begun = has_begun
        #: whether no other call was running in it
        self.was_alone = was_alone


@dataclass(slots=True, eq=False)
class HostCall:
    """A call that runs in a host; its outcome is ``(kind, message)``."""

    id: int
    on_event: OnEvent
    asked: AskedOf
    outcome: "asyncio.Future[tuple[str, JsonObject]]"
    #: the answer to a ping that was sent before it: without that, the call has not begun
    behind: "asyncio.Future[None] | None" = None
    #: what is done on its behalf belongs to its Turn, its trace and its lines of the log
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class Host(asyncio.Protocol):
    """One host process and its connection."""

    def __init__(self, kind: HostKind, guard: Guard, help_url: str) -> None:
        self.kind = kind
        #: set when the process has ended
        self.ended = asyncio.Event()
        self._guard = guard
        self._help_url = help_url
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest: list[bytes] = []
        self._batch: list[bytes] = []
        self._calls: dict[int, HostCall] = {}
        self._last = 0
        self._asks: set[asyncio.Task[None]] = set()
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._reason = ""

    @classmethod
    async def start(cls, kind: HostKind, help_url: str) -> Self:
        """Start a host without waiting until it is ready.

        Raises:
            OSError: there are no processes or descriptors left.
            ConfigError: its sandbox does not work here.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                guard = await asyncio.to_thread(_guarded, kind, theirs.fileno())
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, host = await loop.create_unix_connection(lambda: cls(kind, guard, help_url), sock=ours)
            undo.pop_all()
        return host

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._transport is not None and not self._transport.is_closing() and not self._reason

    @property
    def is_idle(self) -> bool:
        """Whether no call runs in it."""
        return not self._calls

    def begin(self, order: JsonObject, on_event: OnEvent, asked: AskedOf) -> HostCall:
        """Let the handler of ``order`` begin."""
        self._last += 1
        call = HostCall(self._last, on_event, asked, self._loop.create_future())
        call.behind = next(iter(self._pongs.values()), None)
        self._calls[call.id] = call
        self._send({"t": "call", "id": call.id, **order})
        return call

    def forget(self, call: HostCall) -> None:
        """Take no interest in a call any more."""
        self._calls.pop(call.id, None)

    async def abort(self, call: HostCall, error: JsonObject) -> None:
        """Abort the signal of a call, and wait a moment until its handler has ended.

        A host that is blocked meanwhile is killed, with all its calls.
        """
        self._send({"t": "abort", "id": call.id, "error": error})
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs[call.id] = pong
        self._send({"t": "ping", "id": call.id})
        # looked at even if this is cancelled once more
        self._loop.call_later(PONG_SECONDS, self._kill_if_blocked, pong)
        await asyncio.wait({call.outcome}, timeout=ABORT_SECONDS)
        if call.outcome.done() and not call.outcome.cancelled():
            call.outcome.exception()  # nobody wants it any more

    def stop(self, reason: str) -> None:
        """End the process and its tree; the calls in it fail with the reason."""
        self._reason = self._reason or reason
        self._guard.break_lifeline()

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read what the host has sent: lines of JSON, of which the last may be incomplete."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest = [rest] if rest else []
            for line in lines:
                self._receive(line)
        else:
            self._rest.append(rest)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the calls that ran in it, as soon as it is known how the process has ended."""
        task = self._loop.create_task(self._end())
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _end(self) -> None:
        code = await asyncio.to_thread(self._guard.end, CRASH_SECONDS)
        reason = self._reason or describe_end(code)
        self._reason = reason
        limit = f" (its memoryMb is {self.kind.memory_mb})" if self.kind.memory_mb else ""
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            if not call.outcome.done():
                has_begun = call.behind is None or call.behind.done()
                was_alone = len(calls) == 1
                message = f"The {self.kind.whose}'s process {reason}{limit}."
                call.outcome.set_exception(HostEndedError(message, has_begun=has_begun, was_alone=was_alone))
        self.ended.set()

    # messages

    def _send(self, message: JsonObject) -> None:
        """Send a message, in one write with the others of this round of the loop."""
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(serializer.encode(message, serializer.DEEPEST))

    def _flush(self) -> None:
        self._batch.append(b"")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\n".join(self._batch))
        self._batch = []

    def _receive(self, line: bytes) -> None:
        begin = _BEGIN.match(line)
        if begin is None:
            self.stop("disturbed its connection to the worker")
            return
        kind, number = begin[1].decode(), int(begin[2])
        try:
            message = serializer.decode(line)
        except ValueError as error:
            told = ToolOutputError(f"What the handler returns is not JSON: {error}.")
            # a line of the log ends no call
            kind = "error" if kind in {"value", "pending", "ask"} else "unreadable"
            message = {"error": describe(told, help_url=self._help_url).to_wire()}
        if kind == "pong":
            pong = self._pongs.pop(number, None)
            if pong is not None and not pong.done():
                pong.set_result(None)
            return
        call = self._calls.get(number)
        if call is None:
            if kind == "log":
                logger.log(_LEVELS.get(message.get("level"), 20), str(message.get("event")))
            return
        if kind in {"value", "pending", "error"}:
            message.setdefault("value", None)  # its toJSON has returned nothing
            del self._calls[number]
            if not call.outcome.done():
                call.outcome.set_result((kind, message))
        elif kind == "ask":
            task = self._loop.create_task(self._answer(call, message), context=call.context)
            self._asks.add(task)
            task.add_done_callback(self._asks.discard)
            call.outcome.add_done_callback(lambda _: task.cancel())
        else:
            call.context.run(call.on_event, kind, message)

    async def _answer(self, call: HostCall, message: JsonObject) -> None:
        """Answer what a handler has asked."""
        ask = message["ask"]
        method: Callable[..., Awaitable[Any]] = call.asked().get(message["method"], _unknown)
        outcome = await awaited_outcome(method(*message["args"]))
        if isinstance(outcome.error, asyncio.CancelledError):
            return
        answer: JsonObject = {"t": "answer", "ask": ask}
        if outcome.error is None:
            answer["value"] = outcome.get()
        else:
            answer["error"] = describe(outcome.error, help_url=self._help_url).to_wire()
        try:
            self._send(answer)
        except serializer.NotJsonError as error:
            wrong = describe(bad_output(outcome.get(), error, "What was asked"), help_url=self._help_url)
            self._send({"t": "answer", "ask": ask, "error": wrong.to_wire()})

    def _kill_if_blocked(self, pong: "asyncio.Future[None]") -> None:
        if not pong.done():
            self.stop("did not answer any more, and was ended")


#: how each message begins: by its kind and the number of its call
_BEGIN = re.compile(rb'\{"t":"(\w+)","id":(\d+)')
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


async def _unknown(*_: Any) -> Any:
    raise ToolError("The worker has no such function.")


def _guarded(kind: HostKind, channel: int) -> Guard:
    return Guard(
        kind.command(),
        stdout=channel,
        stderr=None,
        cwd=None if kind.sandbox else kind.root,
        env=dict(kind.environment),
    )
