"""What one call that does nothing costs, for every system."""

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.figures import Aim, Costs, Samples, Section, Table, at_most, number, percentile
from benchmarks.lanes import Lane
from benchmarks.systems import (
    CELERY_SOLO,
    CELERY_THREADS,
    GOONDAN,
    GOONDAN_NO_EVENTS,
    GOONDAN_QUIET,
    PEERS,
    RAW_LOOP,
    Shape,
)
from benchmarks.workload import BATCH

#: of the call whose record is weighed, as JSON
CALL_BYTES = 200
_KEYS_AT_ONCE = 1_000

_TEXT = f"""\
A producer makes calls that do nothing and reads every result, one worker process runs them: in batches of
{BATCH}, one by one without waiting, and alone, each when the one before has its result. The figures are
processor time per call; beside it stands the ratio of wall time, which a busy machine distorts. Systems
without a batch call show their figures for one by one.

*Redis for a finished call* is `MEMORY USAGE` of all keys, names included, after calls of {CALL_BYTES} bytes
whose results were read, less the same before; huey deletes a result when it is read. *Traffic* is what Redis
receives and sends. dramatiq's worker polls at intervals that begin at 5 ms, huey's and taskiq's producers
poll every half millisecond; the others wait with blocking commands. *Start* is from the start of the
worker's process to the result of a call that waits for it."""


class _Figures:
    """What was measured for every system."""

    def __init__(self) -> None:
        self.batches, self.lone, self.single = Costs(), Costs(), Costs()
        self.p50, self.p99 = Samples("ms"), Samples("ms")
        self.stored, self.resident = Samples("bytes"), Samples("MiB")
        self.start = Samples("seconds")

    def add(self, lane: Lane, calls: int, lone_calls: int) -> None:
        """Measure one system once."""
        name = lane.system.name
        self.start.add(name, lane.start_seconds)
        single = lane.burst_cost(calls)
        self.single.add(name, single)
        self.batches.add(name, lane.burst_cost(calls, BATCH) if lane.system.submits_batches else single)
        lone, milliseconds = lane.lone_cost(lone_calls)
        self.lone.add(name, lone)
        self.p50.add(name, percentile(milliseconds, 50))
        self.p99.add(name, percentile(milliseconds, 99))
        self.resident.add(name, lane.worker_bytes() / 2**20)
        before = _bytes_of_keys(lane.redis)
        lane.burst(calls, size=CALL_BYTES)
        self.stored.add(name, (_bytes_of_keys(lane.redis) - before) / calls)

    def tables(self) -> list[Table]:
        """Show everything, processor time first."""
        return [
            self.batches.table(f"Batches of {BATCH}"),
            self.lone.table("Lone calls"),
            self.single.table("One by one, without waiting"),
            self.p50.comparison("A lone call, p50"),
            self.p99.comparison("A lone call, p99"),
            self._redis(),
            self.resident.comparison("The worker's memory"),
            self.start.comparison("Start"),
        ]

    def aims(self) -> list[Aim]:
        """Compare with what is aimed at."""
        ours, total = GOONDAN.name, self.batches.samples("total")
        worker, redis = self.batches.samples("worker"), self.batches.samples("redis")
        lone, wall, single = (
            self.lone.samples("total"),
            self.batches.samples("wall"),
            self.single.samples("wall"),
        )
        celery = wall.best_of({CELERY_THREADS.name, CELERY_SOLO.name})
        events = self.batches.ratio(ours, GOONDAN_NO_EVENTS.name)
        log = self.batches.ratio(GOONDAN_NO_EVENTS.name, GOONDAN_QUIET.name)
        return [
            at_most(
                "processor time in batches, to the cheapest peer's",
                total.ratio(ours, total.best_peer()),
                0.35,
            ),
            at_most(
                "that of the worker, to the cheapest peer's", worker.ratio(ours, worker.best_peer()), 0.35
            ),
            at_most("that of Redis", redis.median(ours), 100, "μs"),
            at_most(
                "processor time of a lone call, to the cheapest peer's",
                lone.ratio(ours, lone.best_peer()),
                0.5,
            ),
            at_most("processor time in batches, to the same without events", events, 1.1),
            at_most("that without events, to the same at log level warning", log, 1.1),
            at_most("wall time in batches, to the fastest peer's", wall.ratio(ours, wall.best_peer()), 0.5),
            at_most("wall time in batches, to stock Celery's", wall.ratio(ours, celery), 0.25),
            at_most(
                "wall time one by one, to the fastest peer's", single.ratio(ours, single.best_peer()), 0.83
            ),
            *(
                at_most(f"p50 of a lone call, to that of {peer}", self.p50.ratio(ours, peer), 1)
                for peer in self.p50.of
                if peer in PEERS
            ),
            at_most("p50 of a lone call, to the raw loop's", self.p50.ratio(ours, RAW_LOOP.name), 6),
            at_most(
                f"Redis memory for a finished call of {CALL_BYTES} bytes",
                self.stored.median(ours),
                1_100,
                "bytes",
            ),
            at_most(
                "Redis traffic for a call in batches",
                self.batches.samples("traffic").median(ours),
                3_000,
                "bytes",
            ),
        ]

    def _redis(self) -> Table:
        used, traffic = self.batches.samples("redis"), self.batches.samples("traffic")
        rows = [
            (name, number(used.median(name)), number(traffic.median(name)), number(self.stored.median(name)))
            for name in self.stored.of
        ]
        header = ("Redis for a finished call", "processor time, μs", "traffic, bytes", "memory, bytes")
        return Table("Redis for a finished call", header, rows)


def measure(bench: Bench) -> Section:
    """Measure processor time, wall time, latency, Redis and memory of a no-op call, for every system."""
    figures = _Figures()
    failures = bench.turns(
        [(system, Shape()) for system in bench.systems],
        lambda lane: figures.add(lane, bench.options.calls, bench.options.lone_calls),
    )
    charts = {
        "Processor time per call, batches": figures.batches.samples("total"),
        "Processor time per call, lone calls": figures.lone.samples("total"),
        "A lone call, p50": figures.p50,
    }
    return Section(
        "Processor time per call", _TEXT, figures.tables(), figures.aims(), charts, failures.values()
    )


def _bytes_of_keys(redis: Redis) -> int:
    with redis.pipeline(transaction=False) as pipe:
        for key in redis.scan_iter(count=_KEYS_AT_ONCE):
            pipe.memory_usage(key, samples=0)
        return sum(size or 0 for size in pipe.execute())
