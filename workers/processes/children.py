"""Processes for isolated tools (:mod:`workers.processes.isolated_child`), kept warm between calls."""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from broker_config import serializer
from goondan_tasks.errors import GoondanError, ToolCrashedError, ToolTimeoutError
from goondan_tasks.messages import JsonObject
from workers.handlers import timed_out
from workers.processes.channel import Channel
from workers.processes.guards import Guard, describe_end

#: what a child may take to start and to import its entry file
START_SECONDS = 60.0
#: what a child whose channel is closed may take to end by itself, with everything it started
CRASH_SECONDS = 2.0
#: how long a child waits for its next call
IDLE_SECONDS = 60.0

#: the child imports from where its worker does; PYTHONPATH would reach the programs of tools too
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); "
    "from workers.processes.isolated_child import main; main(*sys.argv[2:])"
)

#: told what a handler does while it runs: the kind of a message, and the rest of it
OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class ChildKind:
    """What a child is for: the handlers of one entry file, with one limit of memory."""

    entry: Path
    memory_mb: int | None

    def command(self) -> list[str]:
        """Return the command that starts such a child."""
        python = [sys.executable, "-X", "faulthandler", "-c", _PROGRAM, ":".join(sys.path)]
        return [*python, str(self.entry), str(self.memory_mb or 0)]


class Child:
    """One child process. It runs one call at a time."""

    def __init__(self, kind: ChildKind) -> None:
        """Start the child; it is not waited for.

        Raises:
            OSError: there are no processes or descriptors left.
        """
        self.kind = kind
        self._calls = 0
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            # the guard lets go of standard output, so the child's death is the end of the channel
            self._guard = Guard(kind.command(), stdout=theirs.fileno(), stderr=None)
            undo.pop_all()
        self._channel = Channel(ours)
        self._has_ended = False

    def is_alive(self) -> bool:
        """Say whether the child lives; only for one that runs no call."""
        return self._channel.is_open()

    def run(self, order: JsonObject, limit_seconds: float, on_event: OnEvent) -> tuple[str, Any]:
        """Have the child run a call.

        Return ``("value", output)``, ``("pending", fields)`` or ``("error", description)``. The limit
        counts from the start of the handler. A child that raises here must be ended.

        Raises:
            ToolTimeoutError: the child does not start, or the handler is past its limit.
            ToolCrashedError: the process ended before the handler did, or ran out of memory.
        """
        self._calls += 1
        message = serializer.encode({**order, "call": self._calls})
        end = monotonic() + START_SECONDS
        late: GoondanError = ToolTimeoutError(f"The tool's process was not ready within {START_SECONDS:g} s.")
        try:
            self._channel.send(message, end)
            while True:
                number, kind, body = self._receive(end)
                if number != self._calls:
                    continue  # a thread that an earlier call left behind still talks
                if kind == "began":
                    end, late = monotonic() + limit_seconds, timed_out(limit_seconds)
                elif kind in {"value", "pending", "error"}:
                    return kind, body
                elif kind == "out-of-memory":
                    raise ToolCrashedError(f"The tool ran out of memory{self._memory_limit()}.")
                else:
                    on_event(kind, body)
        except TimeoutError as error:
            raise late from error
        except ConnectionError as error:
            ending = describe_end(self.end(CRASH_SECONDS))
            raise ToolCrashedError(f"The tool's process {ending}{self._memory_limit()}.") from error

    def stop(self) -> None:
        """Have the child end, with everything it started; any thread may say so, at any time."""
        self._guard.break_lifeline()

    def end(self, patience_seconds: float = 0.0) -> int | None:
        """End the child with everything it started, and wait for that; return its exit code.

        One that is about to end gets ``patience_seconds``. ``None`` if its guard was killed, or if it was
        ended before.
        """
        if self._has_ended:
            return None
        self._has_ended = True
        try:
            return self._guard.end(patience_seconds)
        finally:
            self._channel.close()

    def _receive(self, end: float) -> tuple[int, str, Any]:
        try:
            number, kind, body = serializer.decode(self._channel.receive(end))
        except (TypeError, ValueError) as error:
            raise ToolCrashedError(
                "The tool disturbed the connection between its process and the worker."
            ) from error
        return number, kind, body

    def _memory_limit(self) -> str:
        return "" if self.kind.memory_mb is None else f" (its memoryMb is {self.kind.memory_mb})"


class Children:
    """The children of one worker process: as many as run calls, and others that wait for their next one."""

    def __init__(self, limit: int = 1, idle_seconds: float = IDLE_SECONDS) -> None:
        #: how many there may be before idle ones make room: the calls that the process runs at one time
        self.limit = limit
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._busy = 0
        #: since when each one waits; the one that waits longest comes first
        self._idle: list[tuple[float, Child]] = []
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    @contextlib.contextmanager
    def lend(self, kind: ChildKind) -> Iterator[Child]:
        """Lend a child, started if none is warm. It comes back warm, or is ended after an exception."""
        with self._counted():
            child = self._warm(kind) or self._start(kind)
            with contextlib.ExitStack() as undo:
                undo.callback(child.end)
                yield child
                undo.pop_all()
            self._keep(child)

    def end_below(self, folder: Path) -> None:
        """End those that wait for calls of the entries in a folder: there will be none."""
        with self._lock:
            ended = [at for at in self._idle if at[1].kind.entry.is_relative_to(folder)]
            self._idle = [at for at in self._idle if at not in ended]
        for _, child in ended:
            child.stop()  # all of them at once, and not one after the other
        for _, child in ended:
            child.end()

    def close(self) -> None:
        """End all that wait; those that run calls end after these, or with the process."""
        self._closed.set()
        self._end_first(lambda: len(self._idle))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Take the child of that kind which has waited least; one that was killed meanwhile is nobody's."""
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
        """End those that have waited longest, as many as ``count`` says while nobody takes one."""
        with self._lock:
            number = count()
            ended, self._idle = self._idle[:number], self._idle[number:]
        for _, child in ended:
            child.end()
