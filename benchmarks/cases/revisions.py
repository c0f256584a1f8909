"""What it costs that the bundle changes while calls run: the worker takes one revision after the other."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.cases.throughput import BATCH
from benchmarks.lane import Lane, LaneFailed
from benchmarks.revised_bundle import other_refs
from benchmarks.section import Promise, Section, Table, at_least, at_most, number
from benchmarks.shape import Shape
from benchmarks.systems import GOONDAN
from broker_config.keys import Keys
from goondan_tasks.bundle import load_bundle
from goondan_tasks.clocks import wall_clock
from goondan_tasks.messages import iso_time
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange

#: how long a revision may take to become active, and how often that is looked at
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.02

_TEXT = f"""\
Our worker runs calls, submitted in batches of {BATCH}, of a bundle in git. While most of them run, the
revisions of the bundle are made active one right after the other: each is checked out, loaded and validated
by the worker, which keeps the last ones for calls that come late, and lets go of the others. The others run
undisturbed, in turns. *Growth* is what came after the first round."""


@dataclass(slots=True)
class _Figures:
    """What was measured, a figure for each round."""

    switching: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    #: of the worker, after each round
    sizes: list[int] = field(default_factory=list)
    #: from each proposal to its revision's being active
    seconds: list[float] = field(default_factory=list)
    calls: int = 0


def measure(bench: Bench) -> Section:
    """Measure one worker, with switches and without in turns."""
    options, figures = bench.options, _Figures()
    each = max(1, options.switches // options.rounds)

    def turn(lane: Lane) -> None:
        refs = [next(left) for _ in range(each)]
        with bench.fleet.redis(lane) as redis, ThreadPoolExecutor(1) as thread:
            switching = thread.submit(_switch, redis, bundle, refs)
            bursts = [_burst(lane, options.calls)]
            while not switching.done():
                bursts.append(_burst(lane, options.calls))
            figures.seconds += switching.result()
        undisturbed = [_burst(lane, options.calls) for _ in bursts[::2]]
        figures.switching.append(len(bursts) * options.calls / sum(bursts))
        figures.undisturbed.append(len(undisturbed) * options.calls / sum(undisturbed))
        figures.calls += (len(bursts) + len(undisturbed)) * options.calls
        figures.sizes.append(lane.worker_bytes())

    with bench.fleet.working([(GOONDAN, Shape(revisions=each * options.rounds))]) as [lane]:
        bundle = Path(lane.surroundings.environment["GOONDAN_BUNDLE"])
        left: Iterator[str] = iter(other_refs(bundle))
        failures = list(bench.turns([lane], turn).values())
    return Section(
        "Revisions", _TEXT, _tables(figures, each), _promises(figures, failures), failures=failures
    )


def _burst(lane: Lane, calls: int) -> float:
    seconds: float = lane.burst(calls, BATCH)["ended"]
    return seconds


def _switch(redis: Redis, bundle: Path, refs: list[str]) -> list[float]:
    """Make one revision after the other active; return how long each took."""
    active = ActiveRevision(redis, Keys(), load_bundle(bundle).workspace_name(None))
    return [_activated(active, ref) for ref in refs]


def _activated(active: ActiveRevision, ref: str) -> float:
    begun = time.monotonic()
    active.propose(RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock())))
    while time.monotonic() - begun < PATIENCE_SECONDS:
        state = active.state()
        if state is None:
            raise LaneFailed("The worker follows no revisions.")
        if state.active == ref:
            return time.monotonic() - begun
        if state.failed is not None and state.failed.ref == ref:
            raise LaneFailed(f"The revision {ref} is not active: {state.failed.reason}")
        time.sleep(_LOOK_SECONDS)
    raise LaneFailed(f"The revision {ref} was not active within {PATIENCE_SECONDS:g} s.")


def _tables(figures: _Figures, each: int) -> list[Table]:
    rates = {"undisturbed": figures.undisturbed, "while revisions change": figures.switching}
    rows = [
        (name, number(median(rate)), f"{number(min(rate))} - {number(max(rate))}")
        for name, rate in rates.items()
        if rate
    ]
    sizes = [(f"{each * done}", f"{size / 2**20:.1f}") for done, size in enumerate(figures.sizes, start=1)]
    header = ("calls/s", "median", "lowest - highest")
    return [Table("", header, rows), Table("The worker's memory", ("switches", "MiB"), sizes)]


def _promises(figures: _Figures, failures: list[str]) -> list[Promise]:
    done, is_whole = len(figures.seconds), bool(figures.seconds) and not failures
    ratio = median(figures.switching) / median(figures.undisturbed) if is_whole else None
    growth = 100 * (figures.sizes[-1] / figures.sizes[0] - 1) if is_whole else None
    took = median(figures.seconds) if is_whole else None
    failed = f"0 of {figures.calls:,}" if is_whole else "see below"
    return [
        Promise(f"calls lost or failed over {done} switches: none", failed, is_whole),
        at_least(f"calls/s over {done} switches, to those without", ratio, 0.9),
        at_most("the worker's growth after the first round of switches", growth, 5, "%"),
        at_most("from a proposal to its being active, median", took, 3, "s"),
    ]
