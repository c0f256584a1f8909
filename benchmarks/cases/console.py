"""What 50 open pages of the console cost the workers: calls a second with them and without."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

import psutil

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, at_most
from benchmarks.lanes import Lane, LaneFailed
from benchmarks.systems import GOONDAN, PYTHON, Shape
from benchmarks.workload import BATCH
from broker_config.process_group import end_processes
from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.machine.process import url_of

FOLLOWERS = 50
#: how often calls run with the pages open and without in a turn, the one right after the other; even, since
#: what runs first costs more
PAIRS = 4
#: a burst takes so many times the calls of one, so that pages are looked at several times meanwhile
BURST = 10
PATIENCE_SECONDS = 60
_LOOK_SECONDS = 0.05
_WITH, _WITHOUT = "all, with open pages", "all, without"
_LOG_LINES = 8

_TEXT = f"""\
Our worker runs calls, submitted in batches of {BATCH}, as fast as it can, while {FOLLOWERS} HTTP clients
follow ten pages of `goondan console`, and while no console runs: one right after the other, each first in
turn. All share the processors. Where these are the limit, the calls lose what the console takes of them:
what worker, producer and Redis need for a call without it is compared with what they and the console need
with it, in processor time, which other programs hardly move. The clients would run elsewhere: theirs does
not count."""


def measure(bench: Bench) -> Section:
    """Measure what 50 open pages of the console cost the workers."""
    times, shares, received = Samples("μs a call"), Samples("% of a processor"), Samples("kB")
    calls = BURST * bench.options.calls

    def turn(lane: Lane) -> None:
        for number in range(PAIRS):
            pair = dict[bool, float]()
            for is_open in (number % 2 == 0, number % 2 == 1):
                if not is_open:
                    pair[is_open] = lane.burst_cost(calls, BATCH).total
                    continue
                with open_pages(lane) as pages:
                    begun, before = time.monotonic(), pages.processor_seconds()
                    cost = lane.burst_cost(calls, BATCH)
                    seconds = pages.processor_seconds() - before
                pair[is_open] = cost.total + 1e6 * seconds / calls
                times.add("console, with open pages", 1e6 * seconds / calls)
                shares.add("console", 100 * seconds / (time.monotonic() - begun))
                received.add("sent to each client", pages.received["bytes"] / FOLLOWERS / 1_000)
            times.add(_WITH, pair[True])
            times.add(_WITHOUT, pair[False])
            bench.say(f"  {pair[True]:.0f} μs a call with open pages, {pair[False]:.0f} without")

    failures = bench.turns([(GOONDAN, Shape())], turn, bench.options.few_rounds)
    ratio = None if failures else times.ratio(_WITHOUT, _WITH)
    lost = None if ratio is None else 100 * (1 - ratio)
    tables = [times.table(), shares.table(), received.table()]
    aim = at_most(f"what {FOLLOWERS} open pages of the console cost the workers", lost, 5, "%")
    return Section("Open pages of the console", _TEXT, tables, [aim], failures=failures.values())


@dataclass(slots=True)
class Pages:
    """The console and its followers."""

    console: psutil.Process
    #: ``events`` and ``bytes``, at the end
    received: dict[str, int] = field(default_factory=dict)

    def processor_seconds(self) -> float:
        """Return the user and system time of the console so far."""
        times = self.console.cpu_times()
        return float(times.user + times.system)


@contextmanager
def open_pages(lane: Lane) -> Iterator[Pages]:
    """Run a console with its followers; what they have received is there after the block.

    Raises:
        LaneFailed: the console or a follower does not start, or ends early.
    """
    with listening_socket("127.0.0.1", 0) as free:
        url = url_of(free)
    with lane.log("console").open("ab") as log:
        serve = (*PYTHON, "goondan_tasks", "console", "--port", url.rpartition(":")[2])
        console = subprocess.Popen(serve, env=lane.environment, stdout=log, stderr=log)
        try:
            _wait_for_answer(lane, url)
            follow = (*PYTHON, "benchmarks.programs.followers", f"{url}/console", str(FOLLOWERS))
            followers = subprocess.Popen(
                follow, env=lane.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
            try:
                assert followers.stdout is not None
                if followers.stdout.readline() != b"ready\n":
                    raise LaneFailed(_end_of(lane, "the followers have ended"))
                pages = Pages(psutil.Process(console.pid))
                yield pages
                told, _ = followers.communicate(timeout=PATIENCE_SECONDS)
                if followers.returncode:
                    raise LaneFailed(_end_of(lane, "a follower has lost its page"))
                pages.received.update(json.loads(told))
            finally:
                end_processes([followers], 0)
        finally:
            end_processes([console], PATIENCE_SECONDS)


def _wait_for_answer(lane: Lane, url: str) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            with urlopen(f"{url}/console", timeout=PATIENCE_SECONDS):  # noqa: S310 - a server of this program
                return
        except OSError:
            time.sleep(_LOOK_SECONDS)
    raise LaneFailed(_end_of(lane, "the console does not answer"))


def _end_of(lane: Lane, what: str) -> str:
    lines = lane.log("console").read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]
    return "\n".join([f"console: {what}.", *lines])
