"""How many calls a second: submitted one by one and in batches."""

from benchmarks.bench import Bench
from benchmarks.lane import Lane
from benchmarks.samples import Samples
from benchmarks.section import Promise, Section, at_least, bars, comparison
from benchmarks.systems import CELERY_SOLO, CELERY_THREADS, GOONDAN, GOONDAN_EVENTS

BATCH = 50

_TEXT = """\
A producer submits calls that do nothing and reads every result, one worker process runs them. *End to end*
is from the first submission to the last result, *submission* to the last submission, while the worker is at
work already. Who has no call for many is shown with its figures for one by one."""


def measure(bench: Bench) -> Section:
    """Measure both ways, each end to end and submission alone."""
    count = bench.options.calls
    each, each_submitted = Samples("calls/s"), Samples("calls/s")
    many, many_submitted = Samples("calls/s"), Samples("calls/s")

    def turn(lane: Lane) -> None:
        answer = lane.burst(count)
        each.add(lane.system, count / answer["ended"])
        each_submitted.add(lane.system, count / answer["submitted"])
        if lane.system.submits_batches:
            answer = lane.burst(count, BATCH)
        many.add(lane.system, count / answer["ended"])
        many_submitted.add(lane.system, count / answer["submitted"])

    lanes = bench.usual_lanes()
    failures = bench.turns(lanes, turn)
    in_batches = f"in batches of {BATCH}"
    tables = [
        comparison(f"End to end, submitted {in_batches}", many),
        comparison("End to end, submitted one by one", each),
        comparison(f"Submission {in_batches}", many_submitted),
        comparison("Submission one by one", each_submitted),
    ]
    panels = [bars("End to end, in batches", many), bars("End to end, one by one", each)]
    return Section("Throughput", _TEXT, tables, _promises(each, many), panels, list(failures.values()))


def _promises(each: Samples, many: Samples) -> list[Promise]:
    peer, celery = many.best_peer(), many.best_of(CELERY_THREADS, CELERY_SOLO)
    return [
        at_least("calls/s in batches, to the fastest peer's", many.ratio(GOONDAN, peer), 1.5),
        at_least("calls/s in batches, to stock Celery's", many.ratio(GOONDAN, celery), 4),
        at_least(
            "calls/s in batches with events on, to the fastest peer's", many.ratio(GOONDAN_EVENTS, peer), 1.2
        ),
        at_least("calls/s one by one, to the fastest peer's", each.ratio(GOONDAN, each.best_peer()), 1),
    ]
