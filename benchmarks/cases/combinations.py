"""Whether a combination of concurrency and prefetch stalls or crawls."""

import statistics
from collections.abc import Mapping

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane
from benchmarks.section import Promise, Section, Table, number
from benchmarks.shape import Shape
from benchmarks.systems import GOONDAN_BY_CELERY

CONCURRENCIES = (1, 2, 8, 64)
PREFETCHES = (1, 4, 64)
#: a quick run leaves these out
_NOT_QUICK = {2, 4}

_TEXT = """\
Our worker, started by `celery -A goondan_tasks worker` with each combination of `--concurrency` and
`--prefetch-multiplier`; calls/s end to end, submitted in batches. After each burst a quarter as many calls
are submitted one by one, to see that nothing stalls either. A cell that failed says so."""


def measure(bench: Bench) -> Section:
    """Measure all combinations in turns."""
    count = bench.options.calls
    figures: dict[Shape, list[float]] = {}

    def turn(lane: Lane) -> None:
        figures.setdefault(lane.shape, []).append(count / lane.burst(count, BATCH)["ended"])
        lane.burst(count // 4 + 1)

    left_out = _NOT_QUICK if bench.options.is_quick else set()
    sizes = [size for size in CONCURRENCIES if size not in left_out]
    prefetches = [prefetch for prefetch in PREFETCHES if prefetch not in left_out]
    shapes = [Shape(concurrency=size, prefetch=prefetch) for size in sizes for prefetch in prefetches]
    with bench.fleet.working((GOONDAN_BY_CELERY, shape) for shape in shapes) as lanes:
        failures = bench.turns(lanes, turn)
    stalled = {lane.shape for lane in failures}
    medians = {shape: statistics.median(of) for shape, of in figures.items() if shape not in stalled}
    rows = [
        (
            str(size),
            *(_cell(medians.get(Shape(concurrency=size, prefetch=prefetch))) for prefetch in prefetches),
        )
        for size in sizes
    ]
    table = Table("", ("concurrency", *(f"prefetch {prefetch}" for prefetch in prefetches)), rows)
    promise = _promise(medians, len(shapes))
    return Section("Concurrency and prefetch", _TEXT, [table], [promise], failures=list(failures.values()))


def _cell(figure: float | None) -> str:
    return "failed" if figure is None else number(figure)


def _promise(medians: Mapping[Shape, float], wanted: int) -> Promise:
    share = min(medians.values()) / max(medians.values()) if medians else 0.0
    stalled = wanted - len(medians)
    measured = f"{share:.2f} x, {stalled} failed"
    text = "the slowest combination of concurrency and prefetch, of the best: at least 0.5, none stalls"
    return Promise(text, measured, stalled == 0 and share >= 0.5)
