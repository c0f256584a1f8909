"""The systems that take part, each in its best fair configuration, and the shapes of their workers."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

USUAL_QUEUE = "bench"
#: the agents that ask and answer
HANDOFF_QUEUES = ("asker", "echo")
#: the agents with three middlewares, plain and async
PLAIN_LAYERED_QUEUE, ASYNC_LAYERED_QUEUE = "plain-layered", "layered"
#: the agent with two hundred tools
STOCKED_QUEUE = "stocked"
#: the agents whose tools or extensions add one thing to a call
ORDINARY_QUEUES = ("ordinary", "one-plain", "one-async", "with-logging", "with-listener", "around-steps")
#: every agent of ``benchmarks/bundle``
BUNDLED_QUEUES = {
    *(USUAL_QUEUE, PLAIN_LAYERED_QUEUE, ASYNC_LAYERED_QUEUE, STOCKED_QUEUE),
    *HANDOFF_QUEUES,
    *ORDINARY_QUEUES,
}

#: -P: nothing in the current directory hides a library
PYTHON = (sys.executable, "-P", "-m")
CELERY = (*PYTHON, "celery", "--quiet", "--app")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a system's workers are asked for."""

    concurrency: int = 8
    queues: tuple[str, ...] = (USUAL_QUEUE,)
    #: Celery's multiplier, where it can be chosen
    prefetch: int = 1
    #: worker processes that serve the same queues
    workers: int = 1
    #: later revisions of the bundle; 0: the bundle is in no repository
    revisions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """A task queue: how its worker is started, and which module holds its program."""

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


_EVENTS_OFF = {"GOONDAN_EVENTS": "off"}


def _own(
    name: str, settings: Mapping[str, str], worker: Callable[[Shape], tuple[str, ...]] = _goondan
) -> System:
    return System(
        name,
        "own pool, {0} slots: daemon threads, one event loop",
        "benchmarks.programs.goondan",
        worker,
        ("goondan_tasks",),
        settings=settings,
        is_peer=False,
        serves_many_queues=True,
    )


#: with the defaults: events for Flower, and a log line for each call
GOONDAN = _own("Goondan", {})
GOONDAN_NO_EVENTS = _own("Goondan, events off", _EVENTS_OFF)
GOONDAN_QUIET = _own(
    "Goondan, events off, log level warning", {**_EVENTS_OFF, "GOONDAN_LOG_LEVEL": "warning"}
)
GOONDAN_BY_CELERY = _own("Goondan, by celery -A goondan_tasks", {}, _goondan_by_celery)
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
SYSTEMS = (
    GOONDAN,
    GOONDAN_NO_EVENTS,
    GOONDAN_QUIET,
    CELERY_THREADS,
    CELERY_SOLO,
    DRAMATIQ,
    HUEY,
    RQ,
    TASKIQ,
    RAW_LOOP,
)
PEERS = frozenset(system.name for system in SYSTEMS if system.is_peer)


def installed_systems() -> list[System]:
    """Return the systems whose packages are installed."""
    return [system for system in SYSTEMS if system.is_installed]


def many_queues(count: int) -> tuple[str, ...]:
    """Name so many queues, which are agents for ours."""
    return tuple(f"bench-{number:03}" for number in range(count))
