"""The worker processes that one orchestrator has started: how each stands, and its end."""

import math
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker_config.process_group import end_processes
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.oauth.refresh import LONGEST_SECONDS
from goondan_tasks.roster import WorkerRecord

#: what a worker may take to end beyond the time in which it drains
STOP_MARGIN_SECONDS = 5.0

#: how long a worker that was at work may give no sign of life before another one takes its place
SILENT_SECONDS = 30.0


class Worker(Protocol):
    """A worker process that was started."""

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process itself."""

    def reason(self) -> str:
        """Say, once it has ended, how, and with what last words."""


class Starter(Protocol):
    """Starts a worker process of an agent."""

    def __call__(self, agent: str) -> Worker:
        """Start it.

        Raises:
            OSError: it cannot be started.
        """


@dataclass(slots=True)
class Member:
    """One worker process of ours."""

    agent: str
    generation: str
    worker: Worker
    #: when it was started: ms, Redis time
    started_at: int
    #: when it was last needed, or became ready; by our own clock
    needed_at: float
    #: whether it has said that it takes calls
    is_ready: bool = False
    #: since when it says so no more, though its process lives; by our own clock
    silent_since: float | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process itself."""
        return self.worker.process

    def is_same(self, record: WorkerRecord) -> bool:
        """Say whether a record of the roster is about this process."""
        return record.pid == self.process.pid and record.host == socket.gethostname()


def patience_of(settings: Settings, bundle: Bundle) -> float:
    """Return how long a bundle's worker may drain: an OAuth refresh in flight outlasts the grace period."""
    return settings.grace_seconds + (LONGEST_SECONDS if bundle.oauth_apps else 0.0)


class Members:
    """The workers by agent, one each; those that were asked to stop leave within ``drain_seconds``."""

    def __init__(
        self, start: Starter, drain_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start = start
        self._stop_seconds = drain_seconds + STOP_MARGIN_SECONDS
        self._clock = clock
        self._present: dict[str, Member] = {}
        self._leaving: list[tuple[Member, float]] = []

    @property
    def present(self) -> Mapping[str, Member]:
        """The workers that are to run."""
        return self._present

    def is_leaving(self, record: WorkerRecord) -> bool:
        """Say whether a record of the roster is about a worker that was asked to stop."""
        return any(member.is_same(record) for member, _ in self._leaving)

    def start(self, agent: str, generation: str, started_at: int) -> Member:
        """Start a worker.

        Raises:
            OSError: it cannot be started.
        """
        member = Member(agent, generation, self._start(agent), started_at, self._clock())
        self._present[agent] = member
        return member

    @property
    def silent_seconds(self) -> float:
        """How long a worker may be silent: one that drains, as somebody has asked it to, is for so long."""
        return max(SILENT_SECONDS, self._stop_seconds)

    def stop(self, member: Member) -> None:
        """Ask a worker to drain and end; it is killed if it does not in time."""
        self._dismiss(member, self._clock() + self._stop_seconds)

    def replace(self, member: Member) -> None:
        """Let another worker take the place of a silent one, which ends when it comes to itself again.

        It is not killed: it may stand in a debugger, or on a machine that sleeps.
        """
        self._dismiss(member, math.inf)

    def _dismiss(self, member: Member, deadline: float) -> None:
        del self._present[member.agent]
        member.process.terminate()
        self._leaving.append((member, deadline))

    def ended(self) -> list[Member]:
        """Return the workers that have ended by themselves since this was last asked; see to the others."""
        now = self._clock()
        for member, deadline in self._leaving:
            if member.process.poll() is None and deadline <= now:
                member.process.send_signal(signal.SIGKILL)
        self._leaving = [one for one in self._leaving if one[0].process.poll() is None]
        ended = [member for member in self._present.values() if member.process.poll() is not None]
        for member in ended:
            del self._present[member.agent]
        return ended

    def end(self) -> None:
        """End all of them: those that do not drain within the grace period are killed.

        An exception meanwhile, such as a second Ctrl-C, kills them at once.
        """
        members = [*self._present.values(), *(member for member, _ in self._leaving)]
        processes = [member.process for member in members]
        self._present.clear()
        self._leaving.clear()
        try:
            end_processes(processes, self._stop_seconds)
        finally:
            for process in processes:
                process.kill()
