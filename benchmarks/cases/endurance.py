"""One worker over a long time: whether its memory grows with calls, and with revisions of its bundle."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.bundles import other_refs
from benchmarks.figures import Aim, Section, Table, at_most, number, times
from benchmarks.lanes import Lane, LaneFailed
from benchmarks.systems import GOONDAN, Shape
from benchmarks.workload import BATCH
from broker_config.keys import Keys
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange

#: how long a revision may take to become active, and how often that is looked at
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.02

#: so many switches make a turn, and then as many calls run undisturbed: noise hits both alike
SWITCHES_A_TURN = 5

#: sizes that are read while the worker runs its calls
_READINGS = 10

_MEMORY_TEXT = """\
The resident size of our worker while it runs the calls, submitted in batches; *growth* is what came after
the first tenth, when every thread, buffer and cache has its size."""

_REVISIONS_TEXT = f"""\
Our worker runs calls, submitted in batches of {BATCH}, of a bundle in git. Meanwhile the revisions of the
bundle are made active one right after the other: each is checked out, loaded and validated by the worker,
which keeps the last ones for late calls and drops the others. After each {SWITCHES_A_TURN} switches calls
run undisturbed. The ratio of wall time is the median of those of the turns; *growth* is that of the second
half, when every thread, buffer and cache has its size."""


@dataclass(slots=True)
class _Figures:
    """What was measured, a figure for each turn."""

    switching: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    #: of the worker, after each turn
    sizes: list[float] = field(default_factory=list)
    #: from each proposal to its revision's being active
    seconds: list[float] = field(default_factory=list)
    calls: int = 0

    def ratio(self) -> float:
        """Return the wall time of calls during switches, to that of undisturbed calls."""
        return median(slow / other for slow, other in zip(self.switching, self.undisturbed, strict=True))

    def growth(self) -> float:
        """Return by how many per cent the worker has grown in the second half."""
        return 100 * (self.sizes[-1] / self.sizes[(len(self.sizes) - 1) // 2] - 1)


def measure_memory(bench: Bench) -> Section:
    """Measure the growth of a worker's memory over many calls."""
    step = max(1, bench.options.memory_calls // _READINGS)
    sizes: list[float] = []

    def watch(lane: Lane) -> None:
        sizes.append(lane.worker_bytes())
        for reading in range(1, _READINGS + 1):
            lane.burst(step, BATCH)
            sizes.append(lane.worker_bytes())
            bench.say(f"  {reading * step:,} calls")

    failures = bench.turns([(GOONDAN, Shape())], watch, 1)
    rows = [(f"{reading * step:,}", f"{size / 2**20:.1f}") for reading, size in enumerate(sizes)]
    growth = None if failures else 100 * (sizes[-1] / sizes[1] - 1)
    aim = at_most(f"the worker's growth over {_READINGS * step:,} calls", growth, 5, "%")
    table = Table("", ("calls", "MiB"), rows)
    return Section("Memory over many calls", _MEMORY_TEXT, [table], [aim], failures=failures.values())


def measure_revisions(bench: Bench) -> Section:
    """Measure switches to other revisions of the bundle while calls run."""
    calls, figures = bench.options.calls, _Figures()
    turns = max(1, bench.options.switches // SWITCHES_A_TURN)

    def watch(lane: Lane) -> None:
        bundle = Path(lane.environment["GOONDAN_BUNDLE"])
        left = iter(other_refs(bundle))
        for _ in range(turns):
            _turn(lane, bundle, [next(left) for _ in range(SWITCHES_A_TURN)], calls, figures)

    failures = bench.turns([(GOONDAN, Shape(revisions=turns * SWITCHES_A_TURN))], watch, 1)
    text, aims = _REVISIONS_TEXT, _aims(figures, is_whole=not failures)
    return Section("Revisions", text, _tables(figures), aims, failures=failures.values())


def _turn(lane: Lane, bundle: Path, refs: list[str], calls: int, figures: _Figures) -> None:
    with ThreadPoolExecutor(1) as thread:
        switching = thread.submit(_switch, lane.redis, bundle, refs)
        bursts = [_burst(lane, calls)]
        while not switching.done():
            bursts.append(_burst(lane, calls))
        figures.seconds += switching.result()
    undisturbed = [_burst(lane, calls) for _ in bursts]
    figures.switching.append(sum(bursts))
    figures.undisturbed.append(sum(undisturbed))
    figures.calls += 2 * len(bursts) * calls
    figures.sizes.append(lane.worker_bytes())


def _burst(lane: Lane, calls: int) -> float:
    seconds: float = lane.burst(calls, BATCH)["ended"]
    return seconds


def _switch(redis: Redis, bundle: Path, refs: list[str]) -> list[float]:
    """Make one revision after the other active; return how long each took."""
    active = ActiveRevision(redis, Keys(), load_bundle(bundle).workspace_name())
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
    sizes = [
        (number(SWITCHES_A_TURN * done), f"{size / 2**20:.1f}", times(slow / other))
        for done, (size, slow, other) in enumerate(
            zip(figures.sizes, figures.switching, figures.undisturbed, strict=True), start=1
        )
        if done % max(1, len(figures.sizes) // 4) == 0
    ]
    return [Table("", ("switches", "the worker's memory, MiB", "wall time, of undisturbed"), sizes)]


def _aims(figures: _Figures, *, is_whole: bool) -> list[Aim]:
    done = len(figures.seconds)
    failed = f"0 of {figures.calls:,}" if is_whole else "see below"
    return [
        Aim(f"calls lost or failed over {done} switches: none", failed, is_whole),
        at_most(f"wall time over {done} switches, to none", figures.ratio() if is_whole else None, 1.1),
        at_most(f"the worker's growth over {done} switches", figures.growth() if is_whole else None, 5, "%"),
        at_most("a switch, from its proposal, median", median(figures.seconds) if is_whole else None, 3, "s"),
    ]
