"""A lane: one system's worker and producer, at work in a database of their own on the private Redis."""

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.producer import Answer
from benchmarks.shape import Shape
from benchmarks.systems import PYTHON, System
from broker_config.process_group import ProcessGroup, end_processes

#: how long an order may take, in seconds
ORDER_SECONDS = 600
STOP_SECONDS = 1
WARM_UP_CALLS = 200
WAKE_UP_CALLS = 5
_LOG_LINES = 8


class LaneFailed(RuntimeError):  # noqa: N818 - named for what happened
    """A system did not do what it was asked for; the message has the end of its logs."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a lane gets from its fleet: a database, an environment, a folder, a group of processes."""

    database: int
    redis_url: str
    environment: Mapping[str, str]
    folder: Path
    group: ProcessGroup


class Lane:
    """A worker process of a system and a producer process of the same system."""

    def __init__(self, system: System, shape: Shape, surroundings: Surroundings) -> None:
        self.system = system
        self.shape = shape
        self.surroundings = surroundings
        self._environment = {**surroundings.environment, **system.settings}
        self.producer: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self._is_warm = False

    def start_producer(self) -> None:
        """Start the producer's process; it connects, and waits for orders."""
        with self._log("producer").open("ab") as log:
            self.producer = subprocess.Popen(
                [*PYTHON, "benchmarks.producer", self.system.program],
                cwd=self.surroundings.folder,
                env=self._environment,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C is the parent's affair; it ends when its orders end
            )

    def start_worker(self) -> None:
        """Start the worker's process."""
        with self._log("worker").open("ab") as log:
            self.worker = self.surroundings.group.start(
                self.system.worker(self.shape),
                cwd=self.surroundings.folder,
                env=self._environment,
                output=log,
            )

    def warm_up(self) -> None:
        """Wait until the worker works, and let it grow its threads and caches; only the first time."""
        if not self._is_warm:
            self.burst(WARM_UP_CALLS)
            self._is_warm = True

    def wake_up(self) -> None:
        """Make a few calls, so that a worker that polls does so often."""
        self.burst(WAKE_UP_CALLS)

    def burst(self, calls: int, batch: int = 1, **order: Any) -> Answer:
        """Let the producer submit ``calls`` and read all results; see :func:`benchmarks.producer.burst`."""
        return self._ask({"do": "burst", "calls": calls, "batch": batch, **order})

    def one_at_a_time(self, calls: int) -> list[float]:
        """Let the producer make ``calls`` one after the other; return the milliseconds of each."""
        milliseconds: list[float] = self._ask({"do": "one_at_a_time", "calls": calls})["milliseconds"]
        return milliseconds

    def open_steps(self, steps: int) -> Answer:
        """Let the producer open Steps; see :func:`benchmarks.producer.open_steps`."""
        return self._ask({"do": "open_steps", "steps": steps})

    def ask(self, **input: Any) -> Answer:
        """Let the lane's agent measure."""
        return self._ask({"do": "ask", "input": input})

    def worker_bytes(self) -> int:
        """Return the resident memory of the worker, its child processes included."""
        if self.worker is None:
            raise LaneFailed(f"{self.system.name} has no worker.")
        try:
            process = psutil.Process(self.worker.pid)
            return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)])
        except psutil.Error as error:
            raise self._failure("its worker has ended") from error

    def stop_producer(self) -> None:
        """Let the producer's process end: there are no more orders."""
        if self.producer is not None and self.producer.stdin is not None:
            self.producer.stdin.close()

    def _ask(self, order: dict[str, Any]) -> Answer:
        producer = self.producer
        if producer is None or producer.stdin is None or producer.stdout is None:
            raise LaneFailed(f"{self.system.name} has no producer.")
        try:
            producer.stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._failure("its producer has ended") from error
        if not select.select([producer.stdout], [], [], ORDER_SECONDS)[0]:
            raise self._failure(f"no answer within {ORDER_SECONDS} s")
        line = producer.stdout.readline()
        if not line:
            raise self._failure("its producer ended")
        answer: Answer = json.loads(line)
        return answer

    def _failure(self, what: str) -> LaneFailed:
        ends = [
            f"{part}: {line}"
            for part in ("producer", "worker")
            if self._log(part).exists()
            for line in self._log(part).read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]
        ]
        return LaneFailed("\n".join([f"{self.system.name}: {what}.", *ends]))

    def _log(self, part: str) -> Path:
        return self.surroundings.folder / f"{part}.log"


def end_lanes(lanes: Sequence[Lane]) -> None:
    """End the processes of all lanes together, those that their workers started included."""
    for lane in lanes:
        lane.stop_producer()
    workers = [lane.worker for lane in lanes if lane.worker]
    children = [child for worker in workers for child in _descendants(worker.pid)]
    end_processes(workers, STOP_SECONDS)
    for child in children:
        _kill(child)
    end_processes([lane.producer for lane in lanes if lane.producer], STOP_SECONDS)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()  # psutil looks whether the id still means the same process
    except psutil.NoSuchProcess:
        return
