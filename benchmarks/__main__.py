"""``python -m benchmarks``: measure, print, and write the report and the chart."""

import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.cases import (
    agents,
    calls,
    commands,
    console,
    endurance,
    fairness,
    javascript,
    ordinary,
    pages,
    shapes,
    thinking,
    tokens,
)
from benchmarks.figures import Section
from benchmarks.lanes import open_fleet
from benchmarks.options import Options, read_options
from benchmarks.report import Run, report, this_machine, write_chart
from benchmarks.systems import installed_systems
from broker_config.embedded import EmbeddedRedisError

#: in the order of the report; the first line of each docstring says in --help what it measures
CASES: dict[str, Callable[[Bench], Section]] = {
    "calls": calls.measure,
    "ordinary": ordinary.measure,
    "fairness": fairness.measure,
    "workers": shapes.measure_workers,
    "queues": shapes.measure_queues,
    "sleepers": shapes.measure_sleepers,
    "combinations": shapes.measure_combinations,
    "handoffs": agents.measure_handoffs,
    "steps": agents.measure_steps,
    "thinking": thinking.measure,
    "javascript": javascript.measure,
    "memory": endurance.measure_memory,
    "revisions": endurance.measure_revisions,
    "tokens": tokens.measure,
    "commands": commands.measure,
    "console": console.measure,
    "pages": pages.measure,
}


def main() -> int:
    """Carry out a run; return the exit code."""
    options = read_options(
        sys.argv[1:], {name: (case.__doc__ or "").partition("\n")[0] for name, case in CASES.items()}
    )
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
    with open_fleet() as fleet:
        machine = this_machine(fleet.redis.info("server")["redis_version"])
        bench = Bench(fleet, options, installed_systems())
        sections = [_measured(bench, name) for name in options.cases]
    run = Run(
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=time.monotonic() - begun,
        machine=machine,
        systems=bench.systems,
        is_quick=options.is_quick,
    )
    _write(run, sections, options.folder)


def _measured(bench: Bench, name: str) -> Section:
    begun = time.monotonic()
    bench.say(f"{name} …")
    section = CASES[name](bench)
    bench.say(f"{name}: {time.monotonic() - begun:.0f} s")
    return section


def _write(run: Run, sections: list[Section], folder: Path) -> None:
    charts = {title: samples for section in sections for title, samples in section.charts.items()}
    chart = write_chart(charts, folder).name if charts else None
    text = report(run, sections, chart)
    (folder / "report.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
