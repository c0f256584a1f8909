"""Workers that are killed, frozen and replaced."""

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from goondan_tasks.testing import LocalStack
from tests.faults.beside import beside
from tests.processes import children_of

Worker = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Death:
    """When a worker was killed, in seconds since the epoch."""

    pid: int
    at: float


class Fleet:
    """The workers of a stack: as many as there should be, whoever is killed.

    ``launch`` starts one and does not wait for it; by default it runs ``goondan worker``.
    """

    def __init__(self, stack: LocalStack, size: int, launch: Callable[[], Worker] | None = None) -> None:
        self._stack = stack
        self._launch = launch or (lambda: stack._launch(stack._agents, 8))
        self.workers = [self._launch() for _ in range(size)]
        self.deaths: list[Death] = []

    @property
    def consuming(self) -> list[Worker]:
        """The workers that live and have announced themselves."""
        announced = {worker.pid for worker in self._stack.client.workers()}
        return [worker for worker in self.workers if worker.poll() is None and worker.pid in announced]

    @property
    def oldest(self) -> Worker:
        """The worker that was started first."""
        return self.workers[0]

    def replace(self, worker: Worker, number: signal.Signals = signal.SIGKILL) -> Worker:
        """End a worker with a signal, without waiting for the one that takes its place.

        SIGKILL meets the children of its pool, too, as it does when a machine dies.
        """
        children = children_of(worker.pid)
        worker.send_signal(number)
        if number == signal.SIGKILL:
            for child in children:
                with suppress(ProcessLookupError):  # it may end with its parent
                    os.kill(child, number)
            worker.wait(60)
            self.deaths += [Death(pid, time.time()) for pid in (worker.pid, *children)]
        self.workers.remove(worker)
        self.workers.append(self._launch())
        return self.workers[-1]

    def revive(self) -> bool:
        """Replace the workers that have died by themselves; true, for use in conditions."""
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.deaths.append(Death(worker.pid, time.time()))
            self.workers.remove(worker)
            self.workers.append(self._launch())
        return True


@contextmanager
def kills(
    fleet: Fleet, seconds: float, chance: random.Random, *, number: signal.Signals = signal.SIGKILL
) -> Iterator[None]:
    """End one consuming worker of a fleet every ``seconds``, for the length of a ``with`` block.

    The last one that consumes is spared: where a start takes longer than ``seconds``, nothing would be done.
    """

    def kill(is_over: threading.Event) -> None:
        while not is_over.wait(seconds):
            consuming = fleet.consuming
            if len(consuming) > 1:
                fleet.replace(chance.choice(consuming), number)

    with beside(kill, "killer", 90):
        yield
