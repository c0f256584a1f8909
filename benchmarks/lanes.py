"""A lane: one system at work on the private Redis, its workers and its producer, and what they use."""

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from redis import Redis

from benchmarks import workload
from benchmarks.bundles import bundle_for
from benchmarks.figures import Cost
from benchmarks.producer import Answer
from benchmarks.systems import PYTHON, Shape, System
from broker_config.embedded import EmbeddedRedis
from broker_config.process_group import ProcessGroup, end_processes

#: how long an order may take, in seconds
ORDER_SECONDS = 600
STOP_SECONDS = 1
#: how long a command of the harness may take: emptying Redis after a long case takes seconds
REDIS_SECONDS = 120
WARM_UP_CALLS = 300
WAKE_UP_CALLS = 5
#: what a worker does late, acknowledgements and events say, belongs to the calls that caused it
SETTLE_SECONDS = 0.5
_LOG_LINES = 8


class LaneFailed(RuntimeError):  # noqa: N818 - named for what happened
    """A system did not do what it was asked for; the message has the end of its logs."""


class Usage(NamedTuple):
    """What a lane has used so far: processor time in seconds, bytes that Redis received and sent."""

    producer: float
    worker: float
    redis: float
    traffic: float


class Lane:
    """The worker processes of a system and a producer process of the same system."""

    def __init__(
        self, system: System, shape: Shape, redis: Redis, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.system = system
        self.shape = shape
        self.redis = redis
        self.environment = {**environment, **system.settings}
        self.workers: list[subprocess.Popen[bytes]] = []
        #: from the start of the workers to the first result, in seconds
        self.start_seconds = 0.0
        self._folder = folder
        with self.log("producer").open("ab") as log:
            self._producer = subprocess.Popen(
                [*PYTHON, "benchmarks.producer", system.program],
                cwd=folder,
                env=self.environment,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C reaches the parent only; the producer ends when its orders end
            )

    def start_workers(self, group: ProcessGroup) -> None:
        """Start the workers, wait until calls run, and let threads and caches grow."""
        begun = time.perf_counter()
        with self.log("worker").open("ab") as log:
            for _ in range(self.shape.workers):
                argv = self.system.worker(self.shape)
                self.workers.append(group.start(argv, cwd=self._folder, env=self.environment, output=log))
        self.burst(1)
        self.start_seconds = time.perf_counter() - begun
        self.burst(WARM_UP_CALLS)
        time.sleep(SETTLE_SECONDS)

    def burst(self, calls: int, batch: int = 1, **order: Any) -> Answer:
        """Let the producer submit ``calls`` and read all results; see :func:`benchmarks.producer.burst`."""
        return self.order("burst", calls=calls, batch=batch, **order)

    def burst_cost(self, calls: int, batch: int = 1) -> Cost:
        """Return what each call of a burst costs."""
        return self.cost("burst", calls, batch=batch)

    def cost(self, name: str, calls: int, **order: Any) -> Cost:
        """Return what each call of an order costs, whose answer says when it ``ended``."""
        before = self._usage_awake()
        return self._cost(before, self.order(name, calls=calls, **order), calls)

    def lone_cost(self, calls: int) -> tuple[Cost, list[float]]:
        """Let the producer make one call after the other; return what each costs and their milliseconds."""
        before = self._usage_awake()
        answer = self.order("one_at_a_time", calls=calls)
        return self._cost(before, answer, calls), answer["milliseconds"]

    def order(self, name: str, **order: Any) -> Answer:
        """Let the producer carry out one of :data:`benchmarks.producer.ORDERS`.

        Raises:
            LaneFailed: it ended, or did not answer in time.
        """
        producer = self._producer
        assert producer.stdin is not None and producer.stdout is not None
        try:
            producer.stdin.write(json.dumps({"do": name, **order}).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._failure("its producer has ended") from error
        if not select.select([producer.stdout], [], [], ORDER_SECONDS)[0]:
            raise self._failure(f"no answer within {ORDER_SECONDS} s")
        line = producer.stdout.readline()
        if not line:
            raise self._failure("its producer ended")
        answer: Answer = json.loads(line)
        return answer

    def worker_bytes(self) -> float:
        """Return the resident memory of the workers, their child processes included."""
        return self._sum(lambda process: process.memory_info().rss, *self.workers)

    def end(self) -> None:
        """End the processes, including those that the workers started."""
        if self._producer.stdin is not None:
            self._producer.stdin.close()
        children: list[psutil.Process] = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                children += psutil.Process(worker.pid).children(recursive=True)
        end_processes(self.workers, STOP_SECONDS)
        for child in children:
            with suppress(psutil.NoSuchProcess):  # psutil looks whether the id still means the same process
                child.kill()
        end_processes([self._producer], STOP_SECONDS)

    def _usage_awake(self) -> Usage:
        self.burst(WAKE_UP_CALLS)  # an idle worker that polls does so seldom
        return self._usage()

    def _usage(self) -> Usage:
        processor, traffic = self.redis.info("cpu"), self.redis.info("stats")
        return Usage(
            producer=self._sum(_processor_seconds, self._producer),
            worker=self._sum(_processor_seconds, *self.workers),
            redis=processor["used_cpu_user"] + processor["used_cpu_sys"],
            traffic=traffic["total_net_input_bytes"] + traffic["total_net_output_bytes"],
        )

    def _cost(self, before: Usage, answer: Answer, calls: int) -> Cost:
        time.sleep(SETTLE_SECONDS)
        after = self._usage()
        used = Usage(*((late - early) / calls for early, late in zip(before, after, strict=True)))
        return Cost(
            producer=used.producer * 1e6,
            worker=used.worker * 1e6,
            redis=used.redis * 1e6,
            wall=answer["ended"] / calls * 1e6,
            traffic=used.traffic,
        )

    def _sum(self, figure: Callable[[psutil.Process], float], *processes: "subprocess.Popen[bytes]") -> float:
        """Add up a figure of processes and their children."""
        try:
            parents = [psutil.Process(process.pid) for process in processes]
            return sum(
                figure(each) for parent in parents for each in [parent, *parent.children(recursive=True)]
            )
        except (psutil.Error, OSError) as error:
            raise self._failure("one of its processes has ended") from error

    def _failure(self, what: str) -> LaneFailed:
        ends = [
            f"{part}: {line}"
            for part in ("producer", "worker")
            if self.log(part).exists()
            for line in self.log(part).read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]
        ]
        return LaneFailed("\n".join([f"{self.system.name}: {what}.", *ends]))

    def log(self, part: str) -> Path:
        """Return the file for what a part of the lane prints."""
        return self._folder / f"{part}.log"


@dataclass(slots=True)
class Fleet:
    """One redis-server for all lanes, which work one after the other, each with an empty Redis."""

    url: str
    redis: Redis
    folder: Path
    group: ProcessGroup
    _lanes: int = 0

    @contextmanager
    def working(self, system: System, shape: Shape) -> Iterator[Lane]:
        """Give a lane whose workers run calls; its processes and its data end with the block.

        Raises:
            LaneFailed: its worker runs no calls.
        """
        self._lanes += 1
        folder = self.folder / f"lane-{self._lanes}"
        folder.mkdir()
        bundle = bundle_for(shape, folder / "bundle")
        environment = workload.environment(self.url, shape.queues, bundle, folder)
        lane = Lane(system, shape, self.redis, environment, folder)
        try:
            lane.start_workers(self.group)
            yield lane
        finally:
            lane.end()
            self.redis.flushall()


@contextmanager
def open_fleet() -> Iterator[Fleet]:
    """Start Redis; it ends with the block, together with every process and file of a lane.

    Raises:
        EmbeddedRedisError: there is no redis-server, or it does not start.
    """
    with EmbeddedRedis() as server, Redis.from_url(server.url, socket_timeout=REDIS_SECONDS) as redis:
        folder = Path(tempfile.mkdtemp(prefix="goondan-benchmarks-"))
        with ProcessGroup(folder) as group:
            yield Fleet(server.url, redis, folder, group)


def _processor_seconds(process: psutil.Process) -> float:
    """Return the user and system time of a process; exact on Linux, elsewhere in the kernel's ticks."""
    if sys.platform == "linux":
        return time.clock_gettime((~process.pid << 3) | 2)  # as clock_getcpuclockid(3) makes it
    times = process.cpu_times()
    return times.user + times.system
