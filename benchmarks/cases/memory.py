"""Whether our worker's memory grows with the calls that it has run."""

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane
from benchmarks.section import Section, Table, at_most
from benchmarks.shape import Shape
from benchmarks.systems import GOONDAN

STEPS = 10

_TEXT = """\
The resident size of our worker while it runs the calls, submitted in batches; *growth* is what came after
the first tenth, when every thread, buffer and cache has its size."""


def measure(bench: Bench) -> Section:
    """Watch one worker over many calls."""
    step = max(1, bench.options.memory_calls // STEPS)
    sizes: list[int] = []

    def watch(lane: Lane) -> None:
        sizes.append(lane.worker_bytes())
        for number in range(1, STEPS + 1):
            lane.burst(step, BATCH)
            sizes.append(lane.worker_bytes())
            bench.say(f"  {number * step:,} calls")

    with bench.fleet.working([(GOONDAN, Shape())]) as lanes:
        failures = bench.turns(lanes, watch, 1)
    rows = [(f"{number * step:,}", f"{size / 2**20:.1f}") for number, size in enumerate(sizes)]
    growth = None if failures else 100 * (sizes[-1] / sizes[1] - 1)
    promise = at_most(f"the worker's growth over {STEPS * step:,} calls", growth, 5, "%")
    table = Table("", ("calls", "MiB"), rows)
    return Section("Memory over many calls", _TEXT, [table], [promise], failures=list(failures.values()))
