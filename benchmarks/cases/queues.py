"""What it costs a worker to serve 200 queues, which for ours are 200 agents, and not one."""

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane
from benchmarks.samples import Samples
from benchmarks.section import Section, Table, at_most, number
from benchmarks.shape import Shape, many_queues
from benchmarks.systems import GOONDAN

QUEUES = 200

_TEXT = f"""\
The same number of calls, submitted in batches, in one queue to a worker that serves one, and dealt out to
{QUEUES} queues to a worker that serves them all; end to end, calls/s. huey and taskiq's list broker serve
one queue a process; a quick run measures Goondan only."""


def measure(bench: Bench) -> Section:
    """Measure workers of one queue and of many in turns."""
    samples = {1: Samples("calls/s"), QUEUES: Samples("calls/s")}
    count = bench.options.calls

    def turn(lane: Lane) -> None:
        seconds = lane.burst(count, BATCH)["ended"]
        samples[len(lane.shape.queues)].add(lane.system, count / seconds)

    shapes = (Shape(), Shape(queues=many_queues(QUEUES)))
    able = [system for system in bench.systems if system.serves_many_queues]
    if bench.options.is_quick:
        able = [system for system in able if not system.is_peer]
    with bench.fleet.working((system, shape) for system in able for shape in shapes) as lanes:
        failures = bench.turns(lanes, turn)
    costs = {
        system: 100 * (1 - many / one)
        for system in able
        if (many := samples[QUEUES].median(system)) and (one := samples[1].median(system))
    }
    rows = [
        (
            system.name,
            number(samples[1].median(system)),
            number(samples[QUEUES].median(system)),
            f"{cost:.0f} %",
        )
        for system, cost in costs.items()
    ]
    table = Table("", ("calls/s", "1 queue", f"{QUEUES} queues", "cost"), rows)
    promise = at_most(f"cost of {QUEUES} agents' queues on one worker", costs.get(GOONDAN), 20, "%")
    return Section(
        f"{QUEUES} queues on one worker", _TEXT, [table], [promise], failures=list(failures.values())
    )
