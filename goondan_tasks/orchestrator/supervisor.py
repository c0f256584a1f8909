"""Worker processes: starting, stopping and replacing them."""

import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from broker_config.process_group import ProcessGroup, end_processes
from goondan_tasks.agent_registry import WorkerRecord

#: our command line, safe from modules in the current directory
PROGRAM = (sys.executable, "-P", "-m", "goondan_tasks.cli")

#: how much of the end of a log is kept
LOG_BYTES = 4_000
#: how long reading the end of a log may take after the worker's end: its descendants may hold it open
LOG_SECONDS = 1.0
_REASON_LINES = 12
_REASON_CHARACTERS = 2_000
_LONGEST_LINE = 65_536
_KEPT_LINES = 40

#: how long a worker may take to end after its drain time
STOP_MARGIN_SECONDS = 5.0
#: how long a ready worker may be missing from the agent registry before it is replaced
SILENT_SECONDS = 30.0

#: the pauses before a kept program is restarted; they start over after a healthy run
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_SECONDS = 60.0


# ignores the signals that a terminal or a service manager sends to the group: the worker decides when it ends
_RELAY = f"trap '' HUP INT TERM PIPE; {{ tee /dev/fd/3 >&2; }} 3>&1 | tail -c {LOG_BYTES}"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")

#: takes a process's name and a line about it
Tell = Callable[[str, str], None]


def worker_command(agent: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a worker of one agent."""
    return [*PROGRAM, "worker", "--agent", agent, *options]


class Worker(Protocol):
    """A started process."""

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process itself."""

    def reason(self) -> str:
        """Describe its end, with its last lines, after it has ended."""


class WorkerProcess:
    """A worker that outlives this process.

    Its log goes to this process's stderr through ``tee``, which lives as long as the worker, so that the
    worker does not fail when nothing reads its log. ``tail`` keeps the end for :meth:`reason`.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", relay: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._relay = relay
        self._log_end = b""
        self._reader = threading.Thread(target=self._read_log_end, daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start a worker.

        Raises:
            OSError: it cannot be started.
        """
        log_end, log = os.pipe()
        try:
            relay = subprocess.Popen(
                ["/bin/sh", "-c", _RELAY], stdin=log_end, stdout=subprocess.PIPE, start_new_session=True
            )
            process = subprocess.Popen(
                list(command),
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(log_end)
            os.close(log)
        return cls(process, relay)

    def reason(self) -> str:
        """Describe its end, with the end of its log."""
        code = self.process.wait()
        self._reader.join(LOG_SECONDS)
        return _reason(code, self._log_end)

    def _read_log_end(self) -> None:
        self._log_end, _ = self._relay.communicate()


class GroupProcess:
    """A process that ends with this one, ``kill -9`` included; its lines go to ``tell`` as they come."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str, tell: Tell) -> None:
        self.process = process
        self._name = name
        self._tell = tell
        self._log: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._forward_lines, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        group: ProcessGroup,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        tell: Tell,
    ) -> Self:
        """Start a process in ``group``; ``name`` goes before its lines.

        Raises:
            OSError: it cannot be started.
        """
        unbuffered = {**environment, "PYTHONUNBUFFERED": "1"}
        return cls(group.start(command, env=unbuffered, output=subprocess.PIPE), name, tell)

    def reason(self) -> str:
        """Describe its end, with the end of its log."""
        code = self.process.wait()
        self._reader.join(LOG_SECONDS)
        return _reason(code, b"".join(list(self._log))[-LOG_BYTES:])

    def _forward_lines(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it was requested
        with self.process.stdout as printed:
            while line := printed.readline(_LONGEST_LINE):
                self._log.append(line)
                self._tell(self._name, line.decode("utf-8", "replace").rstrip("\r\n"))


def _reason(code: int, log: bytes) -> str:
    how = f"It was ended by signal {-code}." if code < 0 else f"It ended with {code}."
    text = _STYLE.sub("", log.decode("utf-8", "replace"))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    last = "\n".join(lines[-_REASON_LINES:])[-_REASON_CHARACTERS:]
    return f"{how}\n{last}".rstrip()


@dataclass(slots=True)
class Member:
    """One supervised worker process."""

    agent: str
    generation: str
    worker: Worker
    #: when it was started: ms, Redis time
    started_at: int
    #: when it was last needed, or became ready; by the supervisor's clock
    needed_at: float
    #: whether it has been in the agent registry
    is_ready: bool = False
    #: since when it is missing from the agent registry although its process is alive, by the supervisor's
    #: clock
    silent_since: float | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process itself."""
        return self.worker.process

    def is_same(self, record: WorkerRecord) -> bool:
        """Say whether a record of the agent registry is about this process."""
        return record.pid == self.process.pid and record.host == socket.gethostname()


@dataclass(slots=True)
class _Program:
    """A program that is restarted whenever it ends."""

    start: Callable[[], Worker]
    worker: Worker
    started_at: float
    tell: Tell
    pause: float = FIRST_PAUSE_SECONDS
    restart_at: float | None = None


class Supervisor:
    """Worker processes, one for each agent, and other programs that are kept running.

    ``start`` starts a worker of an agent. Workers that are stopped have ``drain_seconds`` for their calls.
    """

    def __init__(
        self,
        start: Callable[[str], Worker],
        drain_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._stop_seconds = drain_seconds + STOP_MARGIN_SECONDS
        self._clock = clock
        self._present: dict[str, Member] = {}
        self._leaving: list[tuple[Member, float]] = []
        self._programs: dict[str, _Program] = {}

    @property
    def present(self) -> Mapping[str, Member]:
        """The workers that are to run, by agent."""
        return self._present

    @property
    def silent_seconds(self) -> float:
        """How long a worker may be missing from the agent registry; one that drains is missing all along."""
        return max(SILENT_SECONDS, self._stop_seconds)

    def is_leaving(self, record: WorkerRecord) -> bool:
        """Say whether a record of the agent registry is about a worker that was told to stop."""
        return any(member.is_same(record) for member, _ in self._leaving)

    def start(self, agent: str, generation: str, started_at: int) -> Member:
        """Start a worker.

        Raises:
            OSError: it cannot be started.
        """
        member = Member(agent, generation, self._start(agent), started_at, self._clock())
        self._present[agent] = member
        return member

    def stop(self, member: Member) -> None:
        """Tell a worker to drain and end; it is killed if it takes too long."""
        self._dismiss(member, self._clock() + self._stop_seconds)

    def replace(self, member: Member) -> None:
        """Make room for a worker in place of a silent one, which is told to end but never killed.

        It may be stopped in a debugger, or its machine may be asleep.
        """
        self._dismiss(member, math.inf)

    def keep(self, name: str, start: Callable[[], Worker], tell: Tell) -> None:
        """Start a program, and restart it after each end, with growing pauses; ``tell`` gets the reasons.

        Raises:
            OSError: it cannot be started.
        """
        self._programs[name] = _Program(start, start(), self._clock(), tell)

    def ended(self) -> list[Member]:
        """Return the workers that have ended by themselves since the last time.

        To be called regularly: it also kills workers that take too long to end, and restarts programs.
        """
        now = self._clock()
        for member, deadline in self._leaving:
            if member.process.poll() is None and deadline <= now:
                member.process.send_signal(signal.SIGKILL)
        self._leaving = [one for one in self._leaving if one[0].process.poll() is None]
        for name, program in self._programs.items():
            _keep_running(name, program, now)
        ended = [member for member in self._present.values() if member.process.poll() is not None]
        for member in ended:
            del self._present[member.agent]
        return ended

    def end(self) -> None:
        """End everything; processes that do not end within the drain time are killed.

        An exception in the meantime, such as a second Ctrl-C, kills them at once.
        """
        members = [*self._present.values(), *(member for member, _ in self._leaving)]
        processes = [*(member.process for member in members)]
        processes += [program.worker.process for program in self._programs.values()]
        self._present.clear()
        self._leaving.clear()
        self._programs.clear()
        try:
            end_processes(processes, self._stop_seconds)
        finally:
            for process in processes:
                process.kill()

    def _dismiss(self, member: Member, deadline: float) -> None:
        del self._present[member.agent]
        member.process.terminate()
        self._leaving.append((member, deadline))


def _keep_running(name: str, program: _Program, now: float) -> None:
    if program.restart_at is None and program.worker.process.poll() is not None:
        if now - program.started_at >= HEALTHY_SECONDS:
            program.pause = FIRST_PAUSE_SECONDS
        program.restart_at = now + program.pause
        how = program.worker.reason().partition("\n")[0]
        program.tell(name, f"{how} It is restarted in {program.pause:g} s.")
        program.pause = min(2 * program.pause, LONGEST_PAUSE_SECONDS)
    elif program.restart_at is not None and program.restart_at <= now:
        program.worker, program.started_at, program.restart_at = program.start(), now, None
