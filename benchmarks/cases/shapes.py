"""How cost and time change with the shape of the workers: processes, queues, concurrency, prefetch."""

import statistics
from itertools import product

from benchmarks.bench import Bench
from benchmarks.figures import Aim, Costs, Samples, Section, Table, at_most, number, times
from benchmarks.lanes import Lane
from benchmarks.systems import GOONDAN, GOONDAN_BY_CELERY, Shape, System, many_queues
from benchmarks.workload import BATCH

WORKERS = (1, 2, 4)
QUEUES = 200
SLEEPERS = 500
SLEEP_SECONDS = 1.0
CONCURRENCIES = (1, 2, 8, 64)
PREFETCHES = (1, 4, 64)
#: a quick run leaves these out
_NOT_QUICK = {2, 4}

_WORKERS_TEXT = f"""\
The same calls, submitted in batches of {BATCH}, to one, two and four of our worker processes that serve the
same agent. All of them share the processors with the producer and Redis."""

_QUEUES_TEXT = f"""\
The same number of calls, submitted in batches, in one queue to a worker that serves one, and dealt out to
{QUEUES} queues to a worker that serves them all. huey and taskiq's list broker serve one queue a process; a
quick run measures Goondan only."""

_SLEEPERS_TEXT = f"""\
{SLEEPERS} calls that sleep {SLEEP_SECONDS:g} s, submitted the fastest way, to one worker process of
concurrency {SLEEPERS}; seconds from the first submission to the last result. Async handlers for ours,
dramatiq and taskiq; Celery and huey run sync handlers in as many threads. Celery's solo pool and rq run one
call at a time and are left out."""

_COMBINATIONS_TEXT = """\
Our worker, started by `celery -A goondan_tasks worker` with each combination of `--concurrency` and
`--prefetch-multiplier`; wall time of calls in batches, to that of the fastest combination. After each burst
a quarter as many calls are submitted one by one, to see that nothing stalls either. A cell that failed says
so."""


def measure_workers(bench: Bench) -> Section:
    """Measure one, two and four worker processes for one agent."""
    costs = Costs()
    names = {count: f"{count} worker{'s' * (count > 1)}" for count in WORKERS}

    def turn(lane: Lane) -> None:
        costs.add(names[lane.shape.workers], lane.burst_cost(bench.options.calls, BATCH))

    failures = bench.turns([(GOONDAN, Shape(workers=count)) for count in WORKERS], turn)
    first, *more = names.values()
    wall = costs.samples("wall")
    aims = [at_most(f"wall time with {name}, to one's", wall.ratio(name, first), 0.625) for name in more]
    return Section(
        "Worker processes", _WORKERS_TEXT, [costs.table("", first)], aims, failures=failures.values()
    )


def measure_queues(bench: Bench) -> Section:
    """Measure 200 queues on one worker, beside one queue."""
    costs = Costs()

    def turn(lane: Lane) -> None:
        costs.add(
            _with_queues(lane.system, len(lane.shape.queues)), lane.burst_cost(bench.options.calls, BATCH)
        )

    able = [
        system
        for system in bench.systems
        if system is GOONDAN or (system.is_peer and system.serves_many_queues and not bench.options.is_quick)
    ]
    shapes = (Shape(), Shape(queues=many_queues(QUEUES)))
    failures = bench.turns(list(product(able, shapes)), turn, bench.options.few_rounds)
    pairs = [(_with_queues(system, 1), _with_queues(system, QUEUES)) for system in able]
    total, wall = costs.samples("total"), costs.samples("wall")
    rows = [
        (
            system.name,
            number(total.median(one)),
            number(total.median(many)),
            times(total.ratio(many, one)),
            times(wall.ratio(many, one)),
        )
        for system, (one, many) in zip(able, pairs, strict=True)
    ]
    table = Table("", ("processor time, μs/call", "1 queue", f"{QUEUES} queues", "ratio", "wall time"), rows)
    ours = total.ratio(_with_queues(GOONDAN, QUEUES), _with_queues(GOONDAN, 1))
    aim = at_most(f"processor time with {QUEUES} queues on one worker, to one queue's", ours, 1.15)
    return Section(f"{QUEUES} queues on one worker", _QUEUES_TEXT, [table], [aim], failures=failures.values())


def measure_sleepers(bench: Bench) -> Section:
    """Measure 500 calls that only wait, all at once in one worker process."""
    samples = Samples("seconds")

    def turn(lane: Lane) -> None:
        samples.add(lane.system.name, lane.burst(SLEEPERS, SLEEPERS, seconds=SLEEP_SECONDS)["ended"])

    shape = Shape(concurrency=SLEEPERS)
    able = [system for system in bench.systems if system.overlaps and (system.is_peer or system is GOONDAN)]
    failures = bench.turns([(system, shape) for system in able], turn, bench.options.few_rounds)
    aim = at_most(f"{SLEEPERS} async handlers that sleep 1 s", samples.median(GOONDAN.name), 1.3, "s")
    table = samples.comparison("To the last result")
    return Section(
        f"{SLEEPERS} handlers that sleep", _SLEEPERS_TEXT, [table], [aim], failures=failures.values()
    )


def measure_combinations(bench: Bench) -> Section:
    """Measure combinations of concurrency and prefetch: none stalls."""
    count = bench.options.calls
    seconds: dict[Shape, list[float]] = {}

    def turn(lane: Lane) -> None:
        seconds.setdefault(lane.shape, []).append(lane.burst(count, BATCH)["ended"])
        lane.burst(count // 4 + 1)

    left_out = _NOT_QUICK if bench.options.is_quick else set()
    sizes = [size for size in CONCURRENCIES if size not in left_out]
    prefetches = [prefetch for prefetch in PREFETCHES if prefetch not in left_out]
    shapes = {pair: Shape(concurrency=pair[0], prefetch=pair[1]) for pair in product(sizes, prefetches)}
    wanted = [(GOONDAN_BY_CELERY, shape) for shape in shapes.values()]
    failures = bench.turns(wanted, turn, bench.options.few_rounds)
    failed = {shape for _, shape in failures}
    medians = {shape: statistics.median(figures) for shape, figures in seconds.items() if shape not in failed}
    best, worst = min(medians.values(), default=0.0), max(medians.values(), default=0.0)
    rows = [
        (
            str(size),
            *(
                times(medians[shape] / best) if (shape := shapes[size, prefetch]) in medians else "failed"
                for prefetch in prefetches
            ),
        )
        for size in sizes
    ]
    table = Table("", ("concurrency", *(f"prefetch {prefetch}" for prefetch in prefetches)), rows)
    aim = Aim(
        "the slowest combination of concurrency and prefetch, to the fastest: at most 2 x, none fails",
        f"{times(worst / best if best else None)}, {len(failed)} failed",
        not failed and worst <= 2 * best,
    )
    return Section("Concurrency and prefetch", _COMBINATIONS_TEXT, [table], [aim], failures=failures.values())


def _with_queues(system: System, count: int) -> str:
    return f"{system.name}, {count}"
