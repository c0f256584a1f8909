"""How long a producer waits for a Step to open."""

from benchmarks.bench import Bench
from benchmarks.lane import Lane
from benchmarks.samples import percentile
from benchmarks.section import Section, Table, at_most, number
from benchmarks.shape import STOCKED_QUEUE, Shape
from benchmarks.systems import GOONDAN

MOST_MILLISECONDS = 20

CALL, STEP = "a tool call", "a Step opens"

_TEXT = """\
An agent has two hundred dynamic tools and an `async` step middleware. The producer opens the first Step of
one Turn after the other and reads its catalog, in turns with tool calls of the same agent, one at a time. p50
is that of one turn after the other."""


def measure(bench: Bench) -> Section:
    """Measure Steps and tool calls of one agent in turns."""
    milliseconds: dict[str, list[float]] = {CALL: [], STEP: []}
    tools: set[int] = set()
    count = bench.options.lone_calls

    def turn(lane: Lane) -> None:
        milliseconds[CALL].append(percentile(lane.one_at_a_time(count), 50))
        opened = lane.open_steps(count)
        milliseconds[STEP].append(percentile(opened["milliseconds"], 50))
        tools.add(opened["tools"])

    with bench.fleet.working([(GOONDAN, Shape(queues=(STOCKED_QUEUE,)))]) as lanes:
        failures = bench.turns(lanes, turn)
    rows = [
        (name, number(percentile(figures, 50)), f"{number(min(figures))} - {number(max(figures))}")
        for name, figures in milliseconds.items()
        if figures
    ]
    opened = percentile(milliseconds[STEP], 50) if milliseconds[STEP] else None
    ratio = None if opened is None else opened / MOST_MILLISECONDS
    aim = f"p50 of a Step with {min(tools, default=0)} tools, to {MOST_MILLISECONDS} ms"
    return Section(
        "Steps",
        _TEXT,
        [Table("", ("one at a time: p50, ms", "median", "lowest - highest"), rows)],
        [at_most(aim, ratio, 1)],
        failures=list(failures.values()),
    )
