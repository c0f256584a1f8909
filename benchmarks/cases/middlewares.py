"""What middlewares cost around a tool call."""

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane
from benchmarks.samples import percentile
from benchmarks.section import Section, Table, at_least, number
from benchmarks.shape import USUAL_QUEUE, Shape
from benchmarks.systems import GOONDAN

#: the agents with middlewares, as the table shows them
LAYERED = {
    USUAL_QUEUE: "none",
    "plain-layered": "three plain",
    "layered": "three async",
}

_TEXT = f"""\
Calls of a plain tool that does nothing, {BATCH} a batch, of an agent without middlewares and of two with
three around each call. Plain ones run on the call's thread; `async` ones on the event loop, from where the
tool is handed to a thread."""


def measure(bench: Bench) -> Section:
    """Measure the three agents in turns, each with a worker of its own."""
    count = bench.options.calls
    rates: dict[str, list[float]] = {queue: [] for queue in LAYERED}

    def turn(lane: Lane) -> None:
        [queue] = lane.shape.queues
        rates[queue].append(count / lane.burst(count, BATCH)["ended"])

    shapes = [(GOONDAN, Shape(queues=(queue,))) for queue in LAYERED]
    with bench.fleet.working(shapes) as lanes:
        failures = bench.turns(lanes, turn)
    medians = {queue: percentile(figures, 50) if figures else None for queue, figures in rates.items()}
    rows = [
        (LAYERED[queue], number(medians[queue]), f"{number(min(figures))} - {number(max(figures))}")
        for queue, figures in rates.items()
        if figures
    ]
    promises = [
        at_least(f"calls/s with {LAYERED[queue]} middlewares, to none", _ratio(medians, queue), 0.8)
        for queue in LAYERED
        if queue != USUAL_QUEUE
    ]
    table = Table("", ("middlewares: calls/s", "median", "lowest - highest"), rows)
    return Section("Middlewares", _TEXT, [table], promises, failures=list(failures.values()))


def _ratio(medians: dict[str, float | None], queue: str) -> float | None:
    figure, none = medians[queue], medians[USUAL_QUEUE]
    return None if figure is None or not none else figure / none
