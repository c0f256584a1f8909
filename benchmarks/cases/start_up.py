"""How long a worker takes from the start of its process to its first result."""

import time

from benchmarks.bench import Bench
from benchmarks.lane import LaneFailed
from benchmarks.samples import Samples
from benchmarks.section import Section, comparison
from benchmarks.shape import Shape
from benchmarks.systems import System

_TEXT = """\
From the start of the worker's process to the result of a call that was submitted meanwhile; nothing else
runs."""


def measure(bench: Bench) -> Section:
    """Start each system's worker in turns."""
    samples = Samples("seconds", more_is_better=False)
    failures: dict[System, str] = {}
    for _ in range(bench.options.few_rounds):
        for system in bench.systems:
            try:
                samples.add(system, _seconds_to_first_result(bench, system))
            except LaneFailed as failure:
                failures[system] = str(failure)
    table = comparison("To the first result", samples)
    return Section("Start-up", _TEXT, [table], failures=list(failures.values()))


def _seconds_to_first_result(bench: Bench, system: System) -> float:
    with bench.fleet.lanes([(system, Shape())]) as (lane,):
        lane.start_producer()
        begun = time.perf_counter()
        lane.start_worker()
        lane.burst(1)
        return time.perf_counter() - begun
