"""What it costs to hand work to another agent, beside a tool call."""

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane
from benchmarks.samples import percentile
from benchmarks.section import Section, Table, at_most, number
from benchmarks.shape import HANDOFF_QUEUES, Shape
from benchmarks.systems import GOONDAN

INSTANCES = 100
HANDOFFS = 2_000

CALL, OWN_CALL, HANDOFF = "a tool call of a producer", "a tool call of an agent", "a handoff"
CALLS, OWN_CALLS, HANDOFFS_AT_ONCE = (
    f"tool calls of a producer, {BATCH} a batch",
    "tool calls of an agent, all at once",
    f"handoffs over {INSTANCES} instances, all at once",
)

_TEXT = f"""\
One worker process serves the agent that asks and the one that answers, with 8 places. A handoff is
`ctx.runtime.request` to an agent that answers with its input: into a mailbox, one at a time in each instance,
the answer back; measured by the agent that asks. p50 is that of one turn after the other; the rates are those
of {HANDOFFS} handoffs of one Turn."""


def measure(bench: Bench) -> Section:
    """Measure an agent's handoffs and tool calls in turns."""
    latencies: dict[str, list[float]] = {CALL: [], OWN_CALL: [], HANDOFF: []}
    rates: dict[str, list[float]] = {CALLS: [], OWN_CALLS: [], HANDOFFS_AT_ONCE: []}
    count, many = bench.options.lone_calls, min(HANDOFFS, bench.options.calls)

    def turn(lane: Lane) -> None:
        latencies[CALL].append(percentile(lane.one_at_a_time(count), 50))
        latencies[OWN_CALL].append(percentile(lane.ask(measure="call", count=count)["milliseconds"], 50))
        latencies[HANDOFF].append(percentile(lane.ask(measure="handoff", count=count)["milliseconds"], 50))
        rates[CALLS].append(many / lane.burst(many, BATCH)["ended"])
        rates[OWN_CALLS].append(many / lane.ask(measure="calls", count=many)["seconds"])
        asked = lane.ask(measure="handoffs", count=many, instances=INSTANCES)
        rates[HANDOFFS_AT_ONCE].append(many / asked["seconds"])

    with bench.fleet.working([(GOONDAN, Shape(queues=HANDOFF_QUEUES))]) as lanes:
        failures = bench.turns(lanes, turn)
    handoff, call = _median(latencies[HANDOFF]), _median(latencies[CALL])
    ratio = None if handoff is None or call is None else handoff / call
    return Section(
        "Handoffs",
        _TEXT,
        [_table("one at a time: p50, ms", latencies), _table("many: a second", rates)],
        [at_most("p50 of a handoff, to a tool call's", ratio, 4)],
        failures=list(failures.values()),
    )


def _table(unit: str, samples: dict[str, list[float]]) -> Table:
    rows = [
        (name, number(_median(figures)), f"{number(min(figures))} - {number(max(figures))}")
        for name, figures in samples.items()
        if figures
    ]
    return Table("", (unit, "median", "lowest - highest"), rows)


def _median(figures: list[float]) -> float | None:
    return percentile(figures, 50) if figures else None
