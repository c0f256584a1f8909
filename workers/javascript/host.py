"""The worker's side of a host: a process of Node or Bun that runs many handlers at once.

A host runs below a guard (:mod:`workers.processes.process_guard`), so its whole process tree ends with it and
with the worker. ``machine/node/host.mjs`` describes the messages. All code here runs on the worker's
event loop.
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
from goondan_tasks.contract.errors import PayloadTooLargeError, ToolError, ToolInputValidationError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.output import bad_output
from goondan_tasks.contract.wording import written
from goondan_tasks.machine.javascript import STARTED_IN, Runtime, on_channel
from goondan_tasks.machine.sandbox import Sandbox
from workers.outcome import FunctionOutcome, awaited_outcome
from workers.processes import frames
from workers.processes.programs import CRASH_SECONDS, Guard, describe_end, relayed_stderr

logger = structlog.get_logger("goondan.tool")

#: how long an aborted handler may take to end; after that its call ends without it
ABORT_SECONDS = 0.8
#: how long a host may take to answer a ping before it counts as blocked
PONG_SECONDS = 1.0
#: how many questions of one call may be open
MOST_ASKS = 1_000
#: the longest prefix of a message from a host: the length of its JSON
_PREFIX_BYTES = 16

#: the functions that a handler may ask the worker to call: ``{"runtime.request": …}``
Asked = Mapping[str, Callable[..., Awaitable[Any]]]
#: makes them when a handler asks for the first time; few handlers do
AskedOf = Callable[[], Asked]
#: receives the kind and the body of each log line and progress report; ``dropped`` has a number of lines
OnEvent = Callable[[str, JsonObject], None]


@dataclass(frozen=True, slots=True)
class HostKind:
    """What hosts must have in common to be interchangeable."""

    root: Path
    runtime: Runtime
    environment: tuple[tuple[str, str], ...] = field(repr=False)
    sandbox: Sandbox | None = None
    memory_mb: int | None = None
    #: whether it runs one call at a time
    is_alone: bool = False
    #: extensions have hosts of their own, which no tool can end
    whose: Literal["tool", "extension"] = "tool"
    #: the limit of a message's JSON, both ways
    max_message_bytes: int = frames.ROOM_BYTES

    def command(self) -> list[str]:
        """Return the command that starts such a host."""
        directory = self.sandbox.workdir if self.sandbox else self.root
        serve = ("serve", str(self.max_message_bytes), *(["alone"] if self.is_alone else []))
        argv = self.runtime.command(directory, *serve, memory_mb=self.memory_mb)
        if self.sandbox is not None:
            # the program may be a link, and in a home directory, which the sandbox hides
            program, home = Path(argv[0]).resolve(), dict(self.environment).get("HOME")
            argv = self.sandbox.command([str(program), *argv[1:]], STARTED_IN, home, programs=[program])
        return on_channel(argv)


class HostEndedError(Exception):
    """A host ended before a call in it."""

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
    #: ties what is done for the call to its Turn, its trace and its log fields
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    pace: frames.Pace = field(default_factory=frames.Pace)
    #: its open questions
    asks: set["asyncio.Task[None]"] = field(default_factory=set)

    def tell(self, kind: str, message: JsonObject) -> None:
        """Handle an event, and before it what was left out because it came too fast."""
        self.catch_up()
        self.context.run(self.on_event, kind, message)

    def catch_up(self) -> None:
        """Handle the last progress report that was left out, and say how many lines were."""
        lines, progress = self.pace.taken()
        if progress is not None and not frames.is_too_large("progress", progress):
            with contextlib.suppress(serializer.NotJsonError):
                late = serializer.decode(progress, repairs=True)
                self.context.run(self.on_event, "progress", late)
        if lines:
            self.context.run(self.on_event, "dropped", {"lines": lines})


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
        #: the beginning of an incomplete message
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._batch: list[bytes] = []
        self._calls: dict[int, HostCall] = {}
        #: the orders of calls that are not sent yet, because a ping is not answered
        self._held: dict[HostCall, bytes] = {}
        self._last = 0
        self._asks: set[asyncio.Task[None]] = set()
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._reason = ""
        #: of lines that belong to no call
        self._pace = frames.Pace()

    @classmethod
    async def start(cls, kind: HostKind, help_url: str) -> Self:
        """Start a host without waiting until it is ready.

        Raises:
            OSError: no processes or descriptors are left.
            ConfigError: the sandbox does not work here.
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
        """Whether the host accepts calls."""
        return self._transport is not None and not self._transport.is_closing() and not self._reason

    @property
    def is_idle(self) -> bool:
        """Whether the host runs no call."""
        return not self._calls

    async def run(
        self, order: JsonObject, on_event: OnEvent, asked: AskedOf, reason: Callable[[], JsonObject]
    ) -> tuple[str, JsonObject]:
        """Run the handler of ``order`` and return the kind and the message of its outcome.

        ``reason`` makes the error with which the handler is aborted if this is cancelled.

        Raises:
            HostEndedError: the host ended before the call.
            PayloadTooLargeError: the order is larger than a message may be.
            ToolInputValidationError: an integer of the input is one that JavaScript would change.
        """
        call = self.begin(order, on_event, asked)
        try:
            # a cancel of this must not end the call: its handler has a moment to clean up
            return await asyncio.shield(call.outcome)
        except asyncio.CancelledError:
            await self.abort(call, reason())
            if self.kind.is_alone and not call.outcome.done():
                self.stop("was ended with its call")
            raise
        finally:
            self.forget(call)

    def begin(self, order: JsonObject, on_event: OnEvent, asked: AskedOf) -> HostCall:
        """Start the handler of ``order``; raises as :meth:`run` does, but no HostEndedError.

        While a ping is not answered, the order is held back: if the host is killed as blocked, it is certain
        that the call has not begun.
        """
        self._last += 1
        call = HostCall(self._last, on_event, asked, self._loop.create_future())
        data = self._encoded({"t": "call", "id": call.id, **order})
        if _LONG_NUMBER.search(data):
            _require_exact(order.get("input"), ())
        if self._pongs:
            self._held[call] = data
        else:
            self._write(data)
        self._calls[call.id] = call
        return call

    def forget(self, call: HostCall) -> None:
        """Ignore further messages of a call."""
        self._calls.pop(call.id, None)

    async def abort(self, call: HostCall, error: JsonObject) -> None:
        """Abort the signal of a call, and wait up to ``ABORT_SECONDS`` for its handler to end.

        A host whose event loop is blocked is killed, with all its calls.
        """
        if self._held.pop(call, None) is not None:
            return
        self._send({"t": "abort", "id": call.id, "error": error})
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs[call.id] = pong
        self._send({"t": "ping", "id": call.id})
        # a timer, because this may be cancelled again
        self._loop.call_later(PONG_SECONDS, self._kill_if_blocked, pong)
        await asyncio.wait({call.outcome}, timeout=ABORT_SECONDS)
        if call.outcome.done() and not call.outcome.cancelled():
            call.outcome.exception()  # mark it as retrieved

    def stop(self, reason: str) -> None:
        """End the process and its tree; the calls in it fail with the reason."""
        self._reason = self._reason or reason
        self._guard.break_lifeline()

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle the complete messages in ``data``, and keep an incomplete last one."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._rest_bytes = [], 0
        for line in lines:
            begin = _BEGIN.match(line)
            if begin is None or int(begin[1]) != len(line) - begin.start(2):
                self._disconnect("disturbed its connection to the worker")
                return
            self._receive(begin[3].decode(), int(begin[4]), line[begin.start(2) :])
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > self.kind.max_message_bytes + _PREFIX_BYTES:
            self._disconnect(f"sent a message of more than {self.kind.max_message_bytes} bytes")

    def _disconnect(self, reason: str) -> None:
        """End a host of which nothing more can be read."""
        assert self._transport is not None  # noqa: S101 - it has just been read from
        self.stop(reason)
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the calls in the host, once it is known how the process has ended."""
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
                has_begun = call not in self._held
                was_alone = len(calls) == 1
                message = f"The {self.kind.whose}'s process {reason}{limit}."
                call.outcome.set_exception(HostEndedError(message, has_begun=has_begun, was_alone=was_alone))
        self.ended.set()

    # messages

    def _send(self, message: JsonObject) -> None:
        """Send a message; raises as :meth:`_encoded` does."""
        self._write(self._encoded(message))

    def _encoded(self, message: JsonObject) -> bytes:
        """Return the bytes of a message.

        Raises:
            PayloadTooLargeError: it takes more than ``max_message_bytes``.
            NotJsonError: it is not JSON.
        """
        data = serializer.encode(message, serializer.DEEPEST, repairs=True)
        if len(data) > self.kind.max_message_bytes:
            raise PayloadTooLargeError(
                f"A message to the {self.kind.whose}'s process takes {len(data)} bytes; "
                f"at most {self.kind.max_message_bytes} are allowed."
            )
        return data

    def _write(self, data: bytes) -> None:
        """Write a message together with the others of this round of the loop."""
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(data)

    def _flush(self) -> None:
        self._batch.append(b"")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\n".join(self._batch))
        self._batch = []

    def _receive(self, kind: str, number: int, data: bytes) -> None:
        """Handle a message of the call ``number``."""
        if kind == "pong":
            self._ponged(number)
            return
        call = self._calls.get(number)
        if not (self._pace if call is None else call.pace).admits(kind, data):
            return
        message = self._read(kind, data)
        if message is None:
            return
        if call is None:
            if kind == "log":
                frames.log_line(logger, message.get("level"), message.get("event"))
        elif "error" in message or kind in {"value", "pending", "error"}:
            del self._calls[number]
            call.catch_up()
            if not call.outcome.done():
                call.outcome.set_result(_outcome(kind, message))
        elif kind == "ask":
            self._ask(call, message)
        elif kind in frames.CHATTER:
            call.tell(kind, message)

    def _ponged(self, number: int) -> None:
        """Note that the host is not blocked."""
        pong = self._pongs.pop(number, None)
        if pong is not None and not pong.done():
            pong.set_result(None)
        self._send_held()

    def _read(self, kind: str, data: bytes) -> JsonObject | None:
        """Return a message; ``None`` for one that is left out, and an error if it ends its call."""
        ends_call = kind in {"value", "pending", "ask", "error"}
        if frames.is_too_large(kind, data):
            return {"error": frames.too_large(kind, data)} if ends_call else None
        try:
            message: JsonObject = serializer.decode(data, repairs=True)
        except serializer.NotJsonError as error:
            told = describe(frames.not_json(error), help_url=self._help_url).to_wire()
            return {"error": told} if ends_call else None
        if kind != "error":
            message.pop("error", None)
        return message

    def _ask(self, call: HostCall, message: JsonObject) -> None:
        """Begin to answer a question of a handler."""
        number = message.get("ask")
        if type(number) is not int:
            return
        if len(call.asks) >= MOST_ASKS:
            refused = ToolError(f"The handler waits for {MOST_ASKS} answers, which is the most.")
            self._send_answer(number, FunctionOutcome(error=refused))
            return
        task = self._loop.create_task(self._answer(call, number, message), context=call.context)
        for kept in (self._asks, call.asks):
            kept.add(task)
            task.add_done_callback(kept.discard)
        call.outcome.add_done_callback(lambda _: task.cancel())

    def _send_held(self) -> None:
        """Send the calls that were held back, unless the host is being ended."""
        if self.is_open:
            for data in self._held.values():
                self._write(data)
            self._held.clear()

    async def _answer(self, call: HostCall, number: int, message: JsonObject) -> None:
        """Call the function that a handler asks for, and send what it returns or raises."""

        async def ask() -> Any:
            method: Callable[..., Awaitable[Any]] = call.asked().get(message["method"], _unknown)
            return await method(*message["args"])

        outcome = await awaited_outcome(ask())
        if not isinstance(outcome.error, asyncio.CancelledError):
            self._send_answer(number, outcome)

    def _send_answer(self, number: int, outcome: FunctionOutcome[Any]) -> None:
        error = outcome.error
        if error is None:
            try:
                self._send({"t": "answer", "ask": number, "value": outcome.get()})
                return
            except serializer.NotJsonError as fault:
                error = bad_output(outcome.get(), fault, "What was asked")
            except PayloadTooLargeError as fault:
                error = fault
        described = describe(error, help_url=self._help_url).to_wire()
        self._send({"t": "answer", "ask": number, "error": described})

    def _kill_if_blocked(self, pong: "asyncio.Future[None]") -> None:
        if not pong.done():
            self.stop("did not answer any more, and was ended")


#: how each message begins: the length of its JSON, its kind, the number of its call
_BEGIN = re.compile(rb'(\d{1,15}):(\{"t":"(\w+)","id":(\d{1,16}))')


#: an integer beyond 2^53 has at least as many digits
_LONG_NUMBER = re.compile(rb"\d{16}")
_LARGEST_EXACT = 2**53 - 1


def _require_exact(value: Any, path: tuple[str | int, ...]) -> None:
    """Raise ToolInputValidationError if JavaScript would read another integer than ``value`` has."""
    if isinstance(value, dict | list):
        for step, part in value.items() if isinstance(value, dict) else enumerate(value):
            _require_exact(part, (*path, step))
    elif type(value) is int and abs(value) > _LARGEST_EXACT:
        place = written(path, "input")
        raise ToolInputValidationError(
            f"{place} is {value!s:.100}: JavaScript changes integers beyond 2^53, so the tool was not run.",
            suggestion="Pass the number as text; its parameter must be declared as `type: string`.",
        )


def _outcome(kind: str, message: JsonObject) -> tuple[str, JsonObject]:
    if kind == "error" or "error" in message:
        error = message.get("error")
        return "error", {"error": error if isinstance(error, dict) else {}}
    return kind, {"value": message.get("value")}  # absent if the value's toJSON returned nothing


async def _unknown(*_: Any) -> Any:
    raise ToolError("The worker has no such function.")


def _guarded(kind: HostKind, channel: int) -> Guard:
    command, environment = kind.command(), dict(kind.environment)
    with relayed_stderr() if kind.sandbox else contextlib.nullcontext() as stderr:
        return Guard(command, stdout=channel, stderr=stderr, cwd=STARTED_IN, env=environment)
