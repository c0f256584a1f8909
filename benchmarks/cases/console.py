"""What 50 open pages of the console cost the workers: calls a second with them and without."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from urllib.request import urlopen

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, Table, at_most
from benchmarks.lanes import Lane, LaneFailed
from benchmarks.systems import GOONDAN, PYTHON, Shape
from benchmarks.workload import BATCH
from broker_config.process_group import end_processes
from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.machine.process import url_of

FOLLOWERS = 50
#: how often calls run with the pages open and without in a turn, the one right after the other
PAIRS = 3
#: a burst takes so many times the calls of one, so that pages are looked at several times meanwhile
BURST = 10
PATIENCE_SECONDS = 60
_LOOK_SECONDS = 0.05
_LOG_LINES = 8

_TEXT = f"""\
Our worker runs calls, submitted in batches of {BATCH}, as fast as it can, while {FOLLOWERS} HTTP clients
follow ten pages of `goondan console`, and while no console runs: one right after the other, each first in
turn. Worker, producer, Redis, console and clients share the processors. The ratio is the median of those of
the pairs."""


def measure(bench: Bench) -> Section:
    """Measure what 50 open pages of the console cost the workers."""
    rates, ratios, received = Samples("calls/s"), list[float](), list[float]()
    calls = BURST * bench.options.calls

    def rate(lane: Lane) -> float:
        return calls / float(lane.burst(calls, BATCH)["ended"])

    def turn(lane: Lane) -> None:
        for number in range(PAIRS):
            pair = dict[bool, float]()
            for is_open in (number % 2 == 0, number % 2 == 1):
                if not is_open:
                    pair[is_open] = rate(lane)
                    continue
                with open_pages(lane) as told:
                    pair[is_open] = rate(lane)
                received.append(told["bytes"] / FOLLOWERS / 1_000)
            rates.add("with open pages", pair[True])
            rates.add("without", pair[False])
            ratios.append(pair[True] / pair[False])
            bench.say(f"  {pair[True]:,.0f} calls/s with open pages, {pair[False]:,.0f} without")

    failures = bench.turns([(GOONDAN, Shape())], turn, bench.options.few_rounds)
    lost = None if failures else 100 * (1 - median(ratios))
    tables = [rates.table()]
    if not failures:
        row = (f"{median(ratios):.3f}", f"{min(ratios):.3f} - {max(ratios):.3f}", f"{median(received):,.0f}")
        header = ("calls a second with pages, to those without", "lowest - highest", "kB to each client")
        tables.append(Table("", header, [row]))
    aim = at_most(f"what {FOLLOWERS} open pages of the console cost the workers", lost, 5, "%")
    return Section("Open pages of the console", _TEXT, tables, [aim], failures=failures.values())


@contextmanager
def open_pages(lane: Lane) -> Iterator[dict[str, int]]:
    """Run a console with its followers; what they have received is in the mapping after the block.

    Raises:
        LaneFailed: the console or a follower does not start, or ends early.
    """
    with listening_socket("127.0.0.1", 0) as free:
        url = url_of(free)
    received = dict[str, int]()
    with lane.log("console").open("ab") as log:
        argv = (*PYTHON, "goondan_tasks.cli", "console", "--port", url.rpartition(":")[2])
        console = subprocess.Popen(argv, env=lane.environment, stdout=log, stderr=log)
        try:
            _wait_for_answer(lane, url)
            argv = (*PYTHON, "benchmarks.programs.followers", f"{url}/console", str(FOLLOWERS))
            followers = subprocess.Popen(
                argv, env=lane.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
            try:
                assert followers.stdout is not None
                if followers.stdout.readline() != b"ready\n":
                    raise LaneFailed(_end_of(lane, "the followers have ended"))
                yield received
                told, _ = followers.communicate(timeout=PATIENCE_SECONDS)
                if followers.returncode:
                    raise LaneFailed(_end_of(lane, "a follower has lost its page"))
                received.update(json.loads(told))
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
