"""Keeps processes running: starts them, shows what they print, starts them again when they die."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from broker_config.process_group import ProcessGroup, end_processes

#: the delays before a process that died is started again
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
#: who ran so long had not failed at its start; the delays begin anew
HEALTHY_SECONDS = 60.0

#: what a process may take to end beyond the grace period of its running calls
STOP_MARGIN_SECONDS = 5.0

_LONGEST_LINE = 65_536

Process = subprocess.Popen[bytes]
#: takes the name of a process and what there is to say of it
Tell = Callable[[str, str], None]


@dataclass(slots=True)
class _Member:
    command: Sequence[str]
    process: Process
    started_at: float
    delay: float = FIRST_DELAY_SECONDS
    restart_at: float | None = None


class Supervisor:
    """Processes by name. All of them end with this process, ``kill -9`` included."""

    def __init__(
        self,
        group: ProcessGroup,
        environment: Mapping[str, str],
        *,
        tell: Tell,
        grace_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self._tell = tell
        self._stop_seconds = grace_seconds + STOP_MARGIN_SECONDS
        self._clock = clock
        self._members: dict[str, _Member] = {}
        self._leaving: list[tuple[Process, float]] = []

    def pid(self, name: str) -> int:
        """Return the id of the process of that name, the latest if it was started again."""
        return self._members[name].process.pid

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process and keep it running."""
        self._members[name] = _Member(command, self._launch(name, command), self._clock())

    def stop(self, name: str) -> None:
        """Ask a process to end, and do not wait: it may finish its calls within the grace period."""
        process = self._members.pop(name).process
        if process.poll() is None:
            process.terminate()
            self._leaving.append((process, self._clock() + self._stop_seconds))

    def look_after(self) -> None:
        """Start again what died and has waited long enough; kill what does not leave in time."""
        now = self._clock()
        for name, member in self._members.items():
            if member.restart_at is None and member.process.poll() is not None:
                self._bury(name, member, now)
            elif member.restart_at is not None and member.restart_at <= now:
                member.process, member.started_at = self._launch(name, member.command), now
                member.restart_at = None
        for process, deadline in self._leaving:
            if process.poll() is None and deadline <= now:
                process.kill()
        self._leaving = [(process, end) for process, end in self._leaving if process.poll() is None]

    def end(self) -> None:
        """End all processes: those that do not within the grace period are killed."""
        processes = [member.process for member in self._members.values()]
        end_processes([*processes, *(process for process, _ in self._leaving)], self._stop_seconds)

    def _bury(self, name: str, member: _Member, now: float) -> None:
        if now - member.started_at >= HEALTHY_SECONDS:
            member.delay = FIRST_DELAY_SECONDS
        code = member.process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        self._tell(name, f"{how}; starting it again in {member.delay:g} s")
        member.restart_at = now + member.delay
        member.delay = min(2 * member.delay, LONGEST_DELAY_SECONDS)

    def _launch(self, name: str, command: Sequence[str]) -> Process:
        process = self._group.start(command, env=self._environment, output=subprocess.PIPE)
        threading.Thread(target=self._pass_on, args=(name, process.stdout), daemon=True).start()
        return process

    def _pass_on(self, name: str, printed: IO[bytes]) -> None:
        """Say what a process prints, line by line."""
        with printed:
            while line := printed.readline(_LONGEST_LINE):
                self._tell(name, line.decode("utf-8", "replace").rstrip("\r\n"))
