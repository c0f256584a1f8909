"""The systems that take part, each in its best fair configuration, results on."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.shape import Shape

#: -P: nothing in the current directory hides a library
PYTHON = (sys.executable, "-P", "-m")
CELERY = (*PYTHON, "celery", "--quiet", "--app")


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """One that takes part: how its worker is started, and which module holds its program."""

    name: str
    #: what runs the calls, as the tables show it; ``{0}`` is the concurrency
    pool: str
    program: str
    worker: Callable[[Shape], tuple[str, ...]]
    #: the packages that it needs
    packages: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = True
    #: one worker can serve many queues
    serves_many_queues: bool = False
    #: one worker process can have hundreds of sleeping calls
    overlaps: bool = True
    #: its producer has a way to submit many calls that is not one by one
    submits_batches: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether the packages that it needs can be imported."""
        return all(importlib.util.find_spec(package) for package in self.packages)

    def pool_of(self, shape: Shape) -> str:
        """Say what runs the calls of a worker of this shape."""
        return self.pool.format(shape.concurrency)


def _goondan(shape: Shape) -> tuple[str, ...]:
    agents = [word for queue in shape.queues for word in ("--agent", queue)]
    return (*PYTHON, "goondan_tasks", "worker", *agents, "--concurrency", str(shape.concurrency))


def _goondan_by_celery(shape: Shape) -> tuple[str, ...]:
    """Start our worker by Celery's command line, which can set the prefetch multiplier."""
    queues = ",".join(f"agent.{queue}" for queue in shape.queues)
    amounts = ("--concurrency", str(shape.concurrency), "--prefetch-multiplier", str(shape.prefetch))
    return (*CELERY, "goondan_tasks", "worker", "--queues", queues, *amounts, *_QUIET_CELERY)


def _celery(pool: str) -> Callable[[Shape], tuple[str, ...]]:
    def worker(shape: Shape) -> tuple[str, ...]:
        size = ("--pool", pool, "--concurrency", str(shape.concurrency))
        queues = ("--queues", ",".join(shape.queues))
        return (*CELERY, "benchmarks.programs.celery", "worker", *size, *queues, *_QUIET_CELERY)

    return worker


_QUIET_CELERY = ("--loglevel", "warning", "--without-gossip", "--without-mingle")


def _dramatiq(shape: Shape) -> tuple[str, ...]:
    size = ("--processes", "1", "--threads", str(shape.concurrency))
    return (*PYTHON, "dramatiq", "benchmarks.programs.dramatiq", *size)


def _huey(shape: Shape) -> tuple[str, ...]:
    size = ("--workers", str(shape.concurrency), "--worker-type", "thread", "--no-periodic")
    return (*PYTHON, "huey.bin.huey_consumer", "benchmarks.programs.huey.huey", *size, "--quiet")


def _rq(shape: Shape) -> tuple[str, ...]:
    simple = ("--worker-class", "rq.SimpleWorker", "--quiet")
    return (*PYTHON, "rq.cli", "worker", *simple, *shape.queues)


def _taskiq(shape: Shape) -> tuple[str, ...]:
    size = ("--workers", "1", "--max-async-tasks", str(shape.concurrency))
    program = ("benchmarks.programs.taskiq:broker", "--log-level", "WARNING")
    return (*PYTHON, "taskiq", "worker", *program, *size)


def _raw_loop(_: Shape) -> tuple[str, ...]:
    return (*PYTHON, "benchmarks.programs.raw_loop")


_OWN_POOL = "own pool, {0} places: daemon threads, one event loop"

GOONDAN = System(
    "Goondan",
    _OWN_POOL,
    "benchmarks.programs.goondan",
    _goondan,
    ("goondan_tasks",),
    settings={"GOONDAN_EVENTS": "off"},
    is_peer=False,
    serves_many_queues=True,
)
GOONDAN_EVENTS = System(
    "Goondan, events on",
    _OWN_POOL,
    "benchmarks.programs.goondan",
    _goondan,
    ("goondan_tasks",),
    settings={"GOONDAN_EVENTS": "on"},
    is_peer=False,
)
GOONDAN_BY_CELERY = System(
    "Goondan, by celery -A goondan_tasks",
    _OWN_POOL,
    "benchmarks.programs.goondan",
    _goondan_by_celery,
    ("goondan_tasks",),
    settings={"GOONDAN_EVENTS": "off"},
    is_peer=False,
)
CELERY_THREADS = System(
    "Celery, threads",
    "{0} threads",
    "benchmarks.programs.celery",
    _celery("threads"),
    ("celery",),
    serves_many_queues=True,
)
CELERY_SOLO = System(
    "Celery, solo",
    "one call at a time",
    "benchmarks.programs.celery",
    _celery("solo"),
    ("celery",),
    overlaps=False,
)
DRAMATIQ = System(
    "dramatiq",
    "{0} threads",
    "benchmarks.programs.dramatiq",
    _dramatiq,
    ("dramatiq",),
    serves_many_queues=True,
    submits_batches=False,
)
HUEY = System("huey", "{0} threads", "benchmarks.programs.huey", _huey, ("huey",), submits_batches=False)
RQ = System(
    "rq",
    "SimpleWorker, one call at a time",
    "benchmarks.programs.rq",
    _rq,
    ("rq",),
    serves_many_queues=True,
    overlaps=False,
)
TASKIQ = System(
    "taskiq",
    "one event loop, {0} tasks",
    "benchmarks.programs.taskiq",
    _taskiq,
    ("taskiq", "taskiq_redis"),
)
RAW_LOOP = System(
    "raw redis-py",
    "one call at a time, no promises",
    "benchmarks.programs.raw_loop",
    _raw_loop,
    ("redis",),
    is_peer=False,
    overlaps=False,
)

#: every table's order
SYSTEMS = (GOONDAN, GOONDAN_EVENTS, CELERY_THREADS, CELERY_SOLO, DRAMATIQ, HUEY, RQ, TASKIQ, RAW_LOOP)
