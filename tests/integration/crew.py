"""The workers of one stack, left by one test to the next: their start takes most of a test's time."""

import subprocess

from goondan_tasks.testing import LocalStack

Worker = subprocess.Popen[bytes]


class Crew:
    """Finds a test the workers that it asks for: those that live, and new ones."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self._slots: dict[int, int] = {}

    def muster(self, count: int = 1, *, concurrency: int = 8) -> list[Worker]:
        """Return so many workers with so many places each; no other is left beside them."""
        kept = [worker for worker in self.stack.workers if self._serves(worker, concurrency)][:count]
        for worker in self.stack.workers:
            if worker not in kept:
                self.stack.stop_worker(worker)
        self._forget_all_but({worker.pid for worker in kept})
        return kept + self._start(count - len(kept), concurrency)

    def add(self, *, concurrency: int = 8) -> Worker:
        """Start one more."""
        return self._start(1, concurrency)[0]

    def _serves(self, worker: Worker, concurrency: int) -> bool:
        return worker.poll() is None and self._slots.get(worker.pid) == concurrency

    def _forget_all_but(self, pids: set[int]) -> None:
        """Take those who were killed off the list; they would stand there for a while."""
        client = self.stack.client
        for worker in client.workers():
            if worker.pid not in pids:
                client._agent_registry.remove_worker(worker.row)

    def _start(self, count: int, concurrency: int) -> list[Worker]:
        new = [self.stack._launch(self.stack._agents, concurrency) for _ in range(count)]
        self._slots |= {worker.pid: concurrency for worker in new}
        self.stack._wait_until_ready(new)
        return new
