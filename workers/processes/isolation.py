"""Tools with ``isolation: process``: the worker's side, with child processes kept warm between calls.

The children run :mod:`workers.processes.isolated_child`.
"""

import contextlib
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Self

from broker_config import serializer
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.errors import GoondanError, ToolCrashedError, ToolTimeoutError
from goondan_tasks.contract.failure import DescribedError
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_tasks.machine.process import child_environment, own_environment
from goondan_tasks.machine.sandbox import Sandbox
from workers.cancellation import Cancellation, timed_out
from workers.plain_context import PlainContext, call_of, wire_of
from workers.processes import frames
from workers.processes.channel import ChildChannel
from workers.processes.confinement import Confinement
from workers.processes.frames import ROOM_BYTES
from workers.processes.programs import CRASH_SECONDS, Guard, describe_end, relayed_stderr
from workers.reporters import relay_output

#: how long a child may take to start and to import its entry file
START_SECONDS = 60.0
#: how long an idle child is kept
IDLE_SECONDS = 60.0

#: passes on the worker's import path; PYTHONPATH would leak into the programs of tools
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); "
    "from workers.processes.isolated_child import main; main(*sys.argv[2:])"
)

#: how each message from a child begins: the number of its call, and its kind
_HEAD = re.compile(rb'\[(\d{1,16}),"([a-z-]{1,20})",')

#: receives the kind and the body of each log line and progress report; ``dropped`` has a number of lines
OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class ChildKind:
    """What children must have in common to be interchangeable."""

    entry: Path
    memory_mb: int | None
    environment: Mapping[str, str] = field(default_factory=child_environment, repr=False)
    #: contains the workdir of one instance
    sandbox: Sandbox | None = None
    #: the limit of a message from the child
    max_message_bytes: int = ROOM_BYTES

    def command(self) -> list[str]:
        """Return the command that starts such a child."""
        # the child's current directory may be a workdir, which must not be on its path
        path = ":".join(map(os.path.abspath, sys.path))
        python = [sys.executable, "-P", "-X", "faulthandler", "-c", _PROGRAM, path]
        level = logging.getLogger().getEffectiveLevel()
        argv = [*python, str(self.entry), str(self.memory_mb or 0), str(level)]
        if self.sandbox is None:
            return argv
        return self.sandbox.command(argv, self.sandbox.workdir, self.environment.get("HOME"))


class Child:
    """One child process. It runs one call at a time."""

    def __init__(self, kind: ChildKind) -> None:
        """Start the child without waiting for it.

        Raises:
            OSError: no processes or descriptors are left.
        """
        self.kind = kind
        self._calls = 0
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            # the guard closes its standard output, so the channel ends with the child
            command = kind.command()
            with relayed_stderr() if kind.sandbox else contextlib.nullcontext() as stderr:
                self._guard = Guard(command, stdout=theirs.fileno(), stderr=stderr, env=kind.environment)
            undo.pop_all()
        self._channel = ChildChannel(ours, kind.max_message_bytes)
        self._has_ended = False

    def is_alive(self) -> bool:
        """Return whether an idle child is alive."""
        return self._channel.is_open()

    def run(self, order: JsonObject, limit_seconds: float, on_event: OnEvent) -> tuple[str, Any]:
        """Run a call in the child.

        Return ``("value", output)``, ``("pending", fields)`` or ``("error", description)``, which has the
        ``traceback`` of a foreign exception. The limit counts from the start of the handler. After an
        exception the child must be ended.

        Raises:
            ToolTimeoutError: the child did not start in time, or the handler is past its limit.
            ToolCrashedError: the process ended before the handler did, or ran out of memory.
        """
        self._calls += 1
        message = serializer.encode({**order, "call": self._calls})
        end = monotonic() + START_SECONDS
        late: GoondanError = ToolTimeoutError(f"The tool's process was not ready within {START_SECONDS:g} s.")
        has_begun, pace = False, frames.Pace()
        try:
            self._channel.send(message, end)
            while True:
                number, kind, data = self._receive(end)
                if number != self._calls:
                    continue  # from a thread that an earlier call left behind
                if kind == "began" and not has_begun:
                    has_begun, end, late = True, monotonic() + limit_seconds, timed_out(limit_seconds)
                elif kind == "out-of-memory":
                    raise ToolCrashedError(f"The tool ran out of memory{self._memory_limit()}.")
                elif kind in {"value", "pending", "error"}:
                    _catch_up(pace, on_event)
                    is_too_large = frames.is_too_large(kind, data)
                    return kind, frames.too_large(kind, data) if is_too_large else _body(data)
                elif pace.admits(kind, data) and not frames.is_too_large(kind, data):
                    _catch_up(pace, on_event)
                    on_event(kind, _body(data))
        except TimeoutError as error:
            raise late from error
        except ConnectionError as error:
            ending = describe_end(self.end(CRASH_SECONDS))
            raise ToolCrashedError(f"The tool's process {ending}{self._memory_limit()}.") from error

    def stop(self) -> None:
        """End the child and its tree without waiting; any thread may call this at any time."""
        self._guard.break_lifeline()

    def end(self, patience_seconds: float = 0.0) -> int | None:
        """End the child and its tree, wait for their end, and return the child's exit code.

        The child first gets ``patience_seconds`` to end by itself. ``None`` if its guard was killed, or if
        the child was ended before.
        """
        if self._has_ended:
            return None
        self._has_ended = True
        try:
            return self._guard.end(patience_seconds)
        finally:
            self._channel.close()

    def _receive(self, end: float) -> tuple[int, str, bytes]:
        data = self._channel.receive(end)
        head = _HEAD.match(data)
        if head is None:
            raise ToolCrashedError(_DISTURBED)
        return int(head[1]), head[2].decode(), data

    def _memory_limit(self) -> str:
        return "" if self.kind.memory_mb is None else f" (its memoryMb is {self.kind.memory_mb})"


_DISTURBED = "The tool disturbed the connection between its process and the worker."


def _body(data: bytes) -> Any:
    """Return the body of a message from a child."""
    try:
        _, _, body = serializer.decode(data, repairs=True)
    except (TypeError, ValueError) as error:
        raise ToolCrashedError(_DISTURBED) from error
    return body


def _catch_up(pace: frames.Pace, on_event: OnEvent) -> None:
    """Handle the last progress report that was left out, and say how many lines were."""
    lines, progress = pace.taken()
    if progress is not None and not frames.is_too_large("progress", progress):
        on_event("progress", _body(progress))
    if lines:
        on_event("dropped", lines)


class Children:
    """The children of one worker process, busy and idle."""

    def __init__(self, limit: int = 1, idle_seconds: float = IDLE_SECONDS) -> None:
        #: the worker's concurrency; idle children beyond it are ended
        self.limit = limit
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._busy = 0
        #: each idle child with the time at which it became idle, the longest idle first
        self._idle: list[tuple[float, Child]] = []
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    @contextlib.contextmanager
    def lend(self, kind: ChildKind) -> Iterator[Child]:
        """Lend an idle child, or a new one. It becomes idle again, or is ended after an exception."""
        with self._counted():
            child = self._warm(kind) or self._start(kind)
            with contextlib.ExitStack() as undo:
                undo.callback(child.end)
                yield child
                undo.pop_all()
            self._keep(child)

    def end_below(self, folder: Path) -> None:
        """End the idle children of the entry files in a folder."""
        with self._lock:
            ended = [at for at in self._idle if at[1].kind.entry.is_relative_to(folder)]
            self._idle = [at for at in self._idle if at not in ended]
        for _, child in ended:
            child.stop()  # all of them at once
        for _, child in ended:
            child.end()

    def close(self) -> None:
        """End all idle children; busy ones are ended after their calls, or with the process."""
        self._closed.set()
        self._end_first(lambda: len(self._idle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def _warm(self, kind: ChildKind) -> Child | None:
        """Take the most recently used idle child of a kind; end those that have been killed."""
        while True:
            with self._lock:
                place = next((at for at in reversed(self._idle) if at[1].kind == kind), None)
                if place is None:
                    return None
                self._idle.remove(place)
            if place[1].is_alive():
                return place[1]
            place[1].end()

    def _start(self, kind: ChildKind) -> Child:
        self._end_first(self._surplus)
        return Child(kind)

    def _keep(self, child: Child) -> None:
        with self._lock:
            self._idle.append((monotonic(), child))
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._tidy, name="goondan-children", daemon=True)
                self._keeper.start()
        if self._closed.is_set():
            self.close()

    def _tidy(self) -> None:
        while not self._closed.wait(self._idle_seconds / 4):
            self._end_first(self._overdue)

    def _surplus(self) -> int:
        return max(0, self._busy + len(self._idle) - self.limit)

    def _overdue(self) -> int:
        since = monotonic() - self._idle_seconds
        return sum(begun <= since for begun, _ in self._idle)

    def _end_first(self, count: Callable[[], int]) -> None:
        """End the longest idle children; ``count`` is called under the lock and returns how many."""
        with self._lock:
            number = count()
            ended, self._idle = self._idle[:number], self._idle[number:]
        for _, child in ended:
            child.end()


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the isolated tools of a process share."""

    children: Children
    #: base URL of the error pages
    help_url: str
    confinement: Confinement = field(default_factory=Confinement)
    #: the limit of a message from a child
    max_message_bytes: int = ROOM_BYTES


@dataclass(frozen=True, slots=True)
class IsolatedTool:
    """A tool whose handler runs in a child process, which the call's limit and a cancel end."""

    bound: BoundTool
    isolation: Isolation

    def handler(self, limit_seconds: float) -> Callable[[PlainContext, JsonObject], Any]:
        """Return :meth:`run` as the handler of a plan."""

        def handle(ctx: PlainContext, args: JsonObject) -> Any:
            return self.run(
                ctx, args, limit_seconds=limit_seconds, cancellation=call_of(ctx).ensure_cancellation()
            )

        return handle

    def run(
        self, ctx: ToolContext, args: JsonObject, *, limit_seconds: float, cancellation: Cancellation
    ) -> Any:
        """Run the handler and return its value; this blocks.

        When this returns or raises, the handler has ended; unless it returned, so has its process tree.

        Raises:
            ConfigError: a variable that the tool names has no value.
            ToolTimeoutError: the handler is past its limit.
            ToolCrashedError: the process ended before the handler did.
            DescribedError: the handler raised an error.
            ToolError: the call was cancelled.
            OSError: no process can be started.
        """

        confinement = self.isolation.confinement
        environment = confinement.environment(ctx.agent_name, self.bound)
        sandbox = confinement.sandbox(self.bound, ctx.workdir)
        memory_mb = self.bound.export.memory_mb
        most = self.isolation.max_message_bytes
        kind_of_child = ChildKind(self.bound.entry_path, memory_mb, environment, sandbox, most)
        with self.isolation.children.lend(kind_of_child) as child:
            forget = cancellation.on_cancel(child.stop)
            try:
                kind, body = child.run(
                    self._order(ctx, args, limit_seconds), limit_seconds, partial(_on_event, ctx)
                )
            finally:
                forget()
            if cancellation.error is not None:
                raise cancellation.error  # the handler ended first, but the child is being ended
        if kind == "error":
            limit = self.bound.tool.spec.error_message_limit
            error = frames.error_from(body, self.isolation.help_url, limit)
            raise DescribedError(_with_hint(error, environment))
        return frames.pending_from(body) if kind == "pending" else body

    def _order(self, ctx: ToolContext, args: JsonObject, limit_seconds: float) -> JsonObject:
        return {
            "tool": self.bound.name,
            "export": self.bound.export.name,
            "args": args,
            "limitSeconds": limit_seconds,
            "maxMessageBytes": self.isolation.max_message_bytes,
            "messageLimit": self.bound.tool.spec.error_message_limit,
            "helpUrl": self.isolation.help_url,
            "context": wire_of(ctx),
        }


def _on_event(ctx: ToolContext, kind: str, body: Any) -> None:
    """Handle a log line, a progress report or output of a call; one that is not valid is ignored."""
    match kind, body:
        case "log", [level, event, fields]:
            frames.log_line(ctx.logger, level, event, fields)
        case "record", [name, level, event, fields]:
            frames.log_record(name, level, event, fields)
        case "progress", {"done": done}:
            frames.report_progress(ctx.progress, done, body.get("total"), body.get("message"))
        case "output", [*events]:
            relay_output(ctx.emit, events)
        case "dropped", int():
            frames.log_dropped(ctx.logger, body)


def _with_hint(error: ToolCallError, environment: Mapping[str, str]) -> ToolCallError:
    """Say how to pass on a variable if the handler lacks one that the worker has."""
    name = error.message.strip("'")
    if error.name != "KeyError" or name in environment or name not in own_environment():
        return error
    return error.model_copy(update={"suggestion": f"Name it in 'env' of the Tool or Agent: env: [{name}]."})
