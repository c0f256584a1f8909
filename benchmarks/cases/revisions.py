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

#: so many switches make a turn, and then as many calls run undisturbed: noise hits both alike
SWITCHES_A_TURN = 5

_TEXT = f"""\
Our worker runs calls, submitted in batches of {BATCH}, of a bundle in git. Meanwhile the revisions of the
bundle are made active one right after the other: each is checked out, loaded and validated by the worker,
which keeps the last ones for calls that come late, and lets go of the others. After each {SWITCHES_A_TURN}
switches calls run undisturbed. The ratio is the median of those of the turns; *growth* is that of the second
half, when every thread, buffer and cache has its size."""


@dataclass(slots=True)
class _Figures:
    """What was measured, a figure for each turn."""

    switching: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    #: of the worker, after each turn
    sizes: list[int] = field(default_factory=list)
    #: from each proposal to its revision's being active
    seconds: list[float] = field(default_factory=list)
    calls: int = 0

    def ratio(self) -> float:
        """Return what is left of the calls a second."""
        return median(rate / other for rate, other in zip(self.switching, self.undisturbed, strict=True))

    def growth(self) -> float:
        """Return by how many per cent the worker has grown in the second half."""
        return 100 * (self.sizes[-1] / self.sizes[(len(self.sizes) - 1) // 2] - 1)


def measure(bench: Bench) -> Section:
    """Measure one worker, with switches and without in turns."""
    calls, figures = bench.options.calls, _Figures()
    turns = max(1, bench.options.switches // SWITCHES_A_TURN)

    def turn(lane: Lane) -> None:
        refs = [next(left) for _ in range(SWITCHES_A_TURN)]
        with bench.fleet.redis(lane) as redis, ThreadPoolExecutor(1) as thread:
            switching = thread.submit(_switch, redis, bundle, refs)
            bursts = [_burst(lane, calls)]
            while not switching.done():
                bursts.append(_burst(lane, calls))
            figures.seconds += switching.result()
        undisturbed = [_burst(lane, calls) for _ in bursts]
        figures.switching.append(len(bursts) * calls / sum(bursts))
        figures.undisturbed.append(len(bursts) * calls / sum(undisturbed))
        figures.calls += 2 * len(bursts) * calls
        figures.sizes.append(lane.worker_bytes())

    with bench.fleet.working([(GOONDAN, Shape(revisions=turns * SWITCHES_A_TURN))]) as [lane]:
        bundle = Path(lane.surroundings.environment["GOONDAN_BUNDLE"])
        left: Iterator[str] = iter(other_refs(bundle))
        failures = list(bench.turns([lane], turn, turns).values())
    return Section("Revisions", _TEXT, _tables(figures), _promises(figures, failures), failures=failures)


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


def _tables(figures: _Figures) -> list[Table]:
    rates = {"undisturbed": figures.undisturbed, "while revisions change": figures.switching}
    rows = [
        (name, number(median(rate)), f"{number(min(rate))} - {number(max(rate))}")
        for name, rate in rates.items()
        if rate
    ]
    sizes = [
        (number(SWITCHES_A_TURN * done), f"{size / 2**20:.1f}")
        for done, size in enumerate(figures.sizes, start=1)
        if done % max(1, len(figures.sizes) // 4) == 0
    ]
    header = ("calls/s", "median", "lowest - highest")
    return [Table("", header, rows), Table("The worker's memory", ("switches", "MiB"), sizes)]


def _promises(figures: _Figures, failures: list[str]) -> list[Promise]:
    done, is_whole = len(figures.seconds), bool(figures.sizes) and not failures
    failed = f"0 of {figures.calls:,}" if is_whole else "see below"
    return [
        Promise(f"calls lost or failed over {done} switches: none", failed, is_whole),
        at_least(f"calls/s over {done} switches, to none", figures.ratio() if is_whole else None, 0.9),
        at_most(f"the worker's growth over {done} switches", figures.growth() if is_whole else None, 5, "%"),
        at_most("a switch, from its proposal, median", median(figures.seconds) if is_whole else None, 3, "s"),
    ]
