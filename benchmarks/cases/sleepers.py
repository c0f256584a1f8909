"""How well one worker process overlaps calls that only wait."""

from benchmarks.bench import Bench
from benchmarks.lane import Lane
from benchmarks.samples import Samples
from benchmarks.section import Section, at_most, comparison
from benchmarks.shape import Shape
from benchmarks.systems import GOONDAN, GOONDAN_EVENTS

SLEEPERS = 500
SLEEP_SECONDS = 1.0

_TEXT = f"""\
{SLEEPERS} calls that sleep {SLEEP_SECONDS:g} s, submitted the fastest way, to one worker process of
concurrency {SLEEPERS}; seconds from the first submission to the last result. Async handlers for ours,
dramatiq and taskiq; Celery and huey run sync handlers in as many threads. Celery's solo pool and rq run one
call at a time and are left out."""


def measure(bench: Bench) -> Section:
    """Measure workers with hundreds of places in turns."""
    samples = Samples("seconds", more_is_better=False)

    def turn(lane: Lane) -> None:
        answer = lane.burst(SLEEPERS, SLEEPERS, seconds=SLEEP_SECONDS)
        samples.add(lane.system, answer["ended"])

    shape = Shape(concurrency=SLEEPERS)
    able = [system for system in bench.systems if system.overlaps and system is not GOONDAN_EVENTS]
    with bench.fleet.working((system, shape) for system in able) as lanes:
        failures = bench.turns(lanes, turn, bench.options.few_rounds)
    promise = at_most(f"{SLEEPERS} async handlers that sleep 1 s", samples.median(GOONDAN), 1.6, "s")
    table = comparison("To the last result", samples)
    return Section(
        f"{SLEEPERS} handlers that sleep", _TEXT, [table], [promise], failures=list(failures.values())
    )
