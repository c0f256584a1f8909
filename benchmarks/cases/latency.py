"""How long one call takes when nothing else is going on."""

from benchmarks.bench import Bench
from benchmarks.lane import Lane
from benchmarks.samples import Samples, percentile
from benchmarks.section import Section, at_most, bars, comparison
from benchmarks.systems import GOONDAN, RAW_LOOP

_TEXT = """\
The producer makes a call only when the one before has its result. p50 and p99 are those of one turn; the
table shows their medians over the turns. dramatiq's worker looks for messages at intervals that begin at 5
ms, huey's and taskiq's producers look for results every half millisecond; the others wait with blocking
commands."""


def measure(bench: Bench) -> Section:
    """Measure one call at a time."""
    p50 = Samples("ms", more_is_better=False)
    p99 = Samples("ms", more_is_better=False)

    def turn(lane: Lane) -> None:
        milliseconds = lane.one_at_a_time(bench.options.lone_calls)
        p50.add(lane.system, percentile(milliseconds, 50))
        p99.add(lane.system, percentile(milliseconds, 99))

    lanes = bench.usual_lanes()
    failures = bench.turns(lanes, turn)
    promises = [
        at_most("p50 of one call at a time, to the quickest peer's", p50.ratio(GOONDAN, p50.best_peer()), 1),
        at_most("p50 of one call at a time, to the raw loop's", p50.ratio(GOONDAN, RAW_LOOP), 6),
    ]
    return Section(
        "One call at a time",
        _TEXT,
        [comparison("p50", p50), comparison("p99", p99)],
        promises,
        [bars("One call at a time, p50", p50)],
        list(failures.values()),
    )
