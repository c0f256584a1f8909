"""``python -m benchmarks``: measure, print, and write the report and the chart."""

import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.cases import (
    combinations,
    footprint,
    handoffs,
    latency,
    memory,
    middlewares,
    queues,
    revisions,
    sleepers,
    start_up,
    steps,
    throughput,
    tokens,
)
from benchmarks.chart import write_chart
from benchmarks.fleet import Fleet
from benchmarks.machine import this_machine
from benchmarks.options import Options, read_options
from benchmarks.report import Run, report
from benchmarks.section import Section
from broker_config.embedded import EmbeddedRedisError

Case = Callable[[Bench], Section]

#: in the order of the report
CASES: dict[str, Case] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "queues": queues.measure,
    "sleepers": sleepers.measure,
    "handoffs": handoffs.measure,
    "middlewares": middlewares.measure,
    "steps": steps.measure,
    "footprint": footprint.measure,
    "memory": memory.measure,
    "revisions": revisions.measure,
    "start-up": start_up.measure,
    "tokens": tokens.measure,
    "combinations": combinations.measure,
}
#: these leave a lane of every system at work, so they come last
_WITH_USUAL_LANES = ("throughput", "latency", "footprint")


def main() -> int:
    """Carry out a run; return the exit code."""
    options = read_options(sys.argv[1:], CASES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is tidied up
    try:
        _run(options)
    except KeyboardInterrupt:
        print("Stopped; nothing was written.", file=sys.stderr)
        return 130
    except EmbeddedRedisError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(options: Options) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)  # now, not after minutes
    begun = time.monotonic()
    with Fleet() as fleet:
        machine = this_machine(fleet.redis_version())
        bench = Bench(fleet, options)
        sections = _measured(bench)
    run = Run(
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=time.monotonic() - begun,
        machine=machine,
        systems=bench.systems,
        is_quick=options.is_quick,
    )
    _write(run, sections, options.folder)


def _measured(bench: Bench) -> list[Section]:
    names = sorted(bench.options.cases, key=lambda name: name in _WITH_USUAL_LANES)
    found = {}
    try:
        for name in names:
            begun = time.monotonic()
            bench.say(f"{name} …")
            found[name] = CASES[name](bench)
            bench.say(f"{name}: {time.monotonic() - begun:.0f} s")
    finally:
        bench.close()
    return [found[name] for name in bench.options.cases]


def _write(run: Run, sections: list[Section], folder: Path) -> None:
    panels = [panel for section in sections for panel in section.bars]
    chart = write_chart(panels, folder).name if panels else None
    text = report(run, sections, chart)
    (folder / "report.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
