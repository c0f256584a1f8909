"""Starts, stops and replaces worker processes, and keeps other programs running."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker_config.process_group import ProcessGroup, end_processes
from goondan_tasks.fleet.agent_registry import WorkerRecord

#: our command line, safe from modules in the current directory
PROGRAM = (sys.executable, "-P", "-m", "goondan_tasks")

#: how much of the end of a log is kept
LOG_BYTES, _KEPT_LINES = 4_000, 40
#: how long to wait for the end of a log after the worker's end; its descendants may keep the log open
LOG_SECONDS = 1.0
_REASON_LINES, _REASON_CHARACTERS = 12, 2_000
_LONGEST_LINE = 65_536

#: how long a worker may take to end after its drain time
STOP_MARGIN_SECONDS = 5.0
#: how long a ready worker may be missing from the agent registry before it is replaced
SILENT_SECONDS = 30.0
#: the pauses before a program is restarted; they start over after a healthy run
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, HEALTHY_SECONDS = 1.0, 30.0, 60.0

# ignores signals that a terminal or a service manager sends to the group, because the worker decides when it
# ends
_RELAY = f"trap '' HUP INT TERM PIPE; {{ tee /dev/fd/3 >&2; }} 3>&1 | tail -c {LOG_BYTES}"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")

#: receives the name of a process and a line about it
Tell = Callable[[str, str], None]


def worker_command(agents: Iterable[str], *, concurrency: int, verbose: bool) -> list[str]:
    served = [word for agent in agents for word in ("--agent", agent)]
    options = ["--concurrency", str(concurrency), *(["--verbose"] if verbose else [])]
    return [*PROGRAM, "worker", *served, *options]


class LoggedProcess:
    """A started process and the end of its log, which a thread reads."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Iterable[bytes]) -> None:
        self.process = process
        self._log: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._log.extend, args=(log,), daemon=True)
        self._reader.start()

    def reason(self) -> str:
        """Wait for the process; return how it ended, and the last lines of its log."""
        code = self.process.wait()
        self._reader.join(LOG_SECONDS)
        how = f"It was ended by signal {-code}." if code < 0 else f"It ended with {code}."
        text = b"".join(list(self._log))[-LOG_BYTES:].decode("utf-8", "replace")
        lines = [line.rstrip() for line in _STYLE.sub("", text).splitlines() if line.strip()]
        last = "\n".join(lines[-_REASON_LINES:])[-_REASON_CHARACTERS:]
        return f"{how}\n{last}".rstrip()


def start_detached(command: Sequence[str], environment: Mapping[str, str]) -> LoggedProcess:
    """Start a worker that outlives this process.

    Its log goes to this process's stderr through ``tee``, which lives as long as the worker, so that the
    worker can always write its log. ``tail`` keeps the end of it.

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

    def end_of_log() -> Iterator[bytes]:
        yield relay.communicate()[0]

    return LoggedProcess(process, end_of_log())


def start_in_group(
    group: ProcessGroup, name: str, command: Sequence[str], *, environment: Mapping[str, str], tell: Tell
) -> LoggedProcess:
    """Start a process that ends with this one, ``kill -9`` included; ``tell`` gets its lines as they come.

    Raises:
        OSError: it cannot be started.
    """
    unbuffered = {**environment, "PYTHONUNBUFFERED": "1"}
    process = group.start(command, env=unbuffered, output=subprocess.PIPE)

    def lines() -> Iterator[bytes]:
        assert process.stdout is not None  # noqa: S101 - it was requested
        with process.stdout as printed:
            while line := printed.readline(_LONGEST_LINE):
                yield line
                tell(name, line.decode("utf-8", "replace").rstrip("\r\n"))

    return LoggedProcess(process, lines())


@dataclass(slots=True, eq=False)
class Member:
    """One supervised worker process."""

    #: those that it serves, at least one
    agents: tuple[str, ...]
    generation: str
    worker: LoggedProcess
    #: when it was started: ms, Redis time
    started_at: int
    #: when it was last needed or became ready, by the supervisor's clock
    needed_at: float
    #: whether it has been in the agent registry
    is_ready: bool = False
    #: since when it is alive but missing from the agent registry, by the supervisor's clock
    silent_since: float | None = None
    #: its row in the agent registry, once known
    row: str | None = None
    #: whether it was told to stop
    is_stopped: bool = False

    @property
    def names(self) -> str:
        """The names of its agents."""
        return ", ".join(self.agents)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.worker.process

    def is_same(self, record: WorkerRecord) -> bool:
        """Return whether a record of the agent registry is about this process."""
        return record.is_process(self.process.pid)


@dataclass(slots=True)
class KeptProgram:
    """A program that is restarted whenever it ends, or whenever it fails."""

    start: Callable[[], LoggedProcess]
    worker: LoggedProcess
    started_at: float
    tell: Callable[[str], None]
    #: whether it is done if it ends with 0
    may_end: bool = False
    pause: float = FIRST_PAUSE_SECONDS
    restart_at: float | None = None

    def look(self, now: float) -> None:
        if self.restart_at is None and (code := self.worker.process.poll()) is not None:
            if code == 0 and self.may_end:
                self.restart_at = math.inf
                return
            if now - self.started_at >= HEALTHY_SECONDS:
                self.pause = FIRST_PAUSE_SECONDS
            self.restart_at = now + self.pause
            how = self.worker.reason().partition("\n")[0]
            self.tell(f"{how} It is restarted in {self.pause:g} s.")
            self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)
        elif self.restart_at is not None and self.restart_at <= now:
            self.worker, self.started_at, self.restart_at = self.start(), now, None


class Supervisor:
    """The worker processes, at most one for each agent, and other programs that are kept running.

    ``start`` starts a worker of some agents. Workers that are stopped have ``drain_seconds`` for their calls.
    """

    def __init__(
        self,
        start: Callable[[Sequence[str]], LoggedProcess],
        drain_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._stop_seconds = drain_seconds + STOP_MARGIN_SECONDS
        self._clock = clock
        self._present: dict[str, Member] = {}
        self._leaving: list[tuple[Member, float]] = []
        self._programs: list[KeptProgram] = []

    @property
    def present(self) -> Mapping[str, Member]:
        """The workers that were not told to stop, by agent."""
        return self._present

    @property
    def members(self) -> list[Member]:
        """The workers that were not told to stop, each once."""
        return list(dict.fromkeys(self._present.values()))

    @property
    def silent_seconds(self) -> float:
        """How long a worker may be missing from the agent registry; a draining worker is always missing."""
        return max(SILENT_SECONDS, self._stop_seconds)

    def is_leaving(self, record: WorkerRecord) -> bool:
        """Return whether a record of the agent registry is about a worker that was told to stop."""
        return any(member.is_same(record) for member, _ in self._leaving)

    def start(self, agents: Sequence[str], generation: str, started_at: int) -> Member:
        """Start a worker that serves these agents.

        Raises:
            OSError: it cannot be started.
        """
        member = Member(tuple(agents), generation, self._start(agents), started_at, self._clock())
        self._present.update(dict.fromkeys(agents, member))
        return member

    def stop(self, member: Member, *, may_kill: bool = True) -> None:
        """Tell a worker to drain and end; it is killed if it takes too long.

        With ``may_kill=False``, for a silent worker, it is never killed: it may be stopped in a debugger, or
        its machine may have been asleep.
        """
        self._remove(member)
        member.is_stopped = True
        member.process.terminate()
        self._leaving.append((member, self._clock() + self._stop_seconds if may_kill else math.inf))

    def keep(
        self, start: Callable[[], LoggedProcess], tell: Callable[[str], None], *, may_end: bool = False
    ) -> "KeptProgram":
        """Start a program, and restart it after each end, with growing pauses; ``tell`` gets the reasons.

        One that ``may_end`` is not started again when it has ended with 0.

        Raises:
            OSError: it cannot be started.
        """
        program = KeptProgram(start, start(), self._clock(), tell, may_end)
        self._programs.append(program)
        return program

    def drop(self, program: "KeptProgram") -> None:
        """Ask a program that was kept running to end; it is not started again."""
        self._programs.remove(program)
        program.worker.process.terminate()

    def ended(self) -> list[Member]:
        """Return the workers that have ended since the last call, also those that were told to stop.

        Must be called regularly: it also kills workers that take too long to end, and restarts programs.
        """
        now = self._clock()
        for member, deadline in self._leaving:
            if member.process.poll() is None and deadline <= now:
                member.process.send_signal(signal.SIGKILL)
        ended = [member for member, _ in self._leaving if member.process.poll() is not None]
        self._leaving = [one for one in self._leaving if one[0] not in ended]
        for program in self._programs:
            program.look(now)
        for member in [member for member in self.members if member.process.poll() is not None]:
            self._remove(member)
            ended.append(member)
        return ended

    def _remove(self, member: Member) -> None:
        for agent in member.agents:
            del self._present[agent]

    def end(self) -> list[Member]:
        """End everything and return the workers; processes that take longer than the drain time are killed.

        An exception while waiting, such as a second Ctrl-C, kills them at once.
        """
        members = [*self.members, *(member for member, _ in self._leaving)]
        processes = [one.process for one in members] + [one.worker.process for one in self._programs]
        self._present.clear()
        self._leaving.clear()
        self._programs.clear()
        try:
            end_processes(processes, self._stop_seconds)
        finally:
            for process in processes:
                process.kill()
        return members
