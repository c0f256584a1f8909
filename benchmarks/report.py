"""The report of a run in Markdown, with the machine it was made on and a chart of its bars."""

import importlib
import importlib.util
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.figures import NOTHING, Samples, Section, Table, number
from benchmarks.systems import SYSTEMS, Shape, System

PACKAGES = ("celery", "dramatiq", "huey", "rq", "taskiq", "taskiq-redis", "redis", "hiredis")

#: above this share of the processors, other programs are in the way
BUSY_SHARE = 0.25

_METHOD = """\
## How it is measured

Processor time is user and system time of the producer, of the worker with its child processes, and of
redis-server, read around each phase and half a second after its last result, and divided by the calls. It
moves less than wall time when other programs run; still, only ratios inside one run count. Wall time is
measured by the producer, from the first submission to the last result.

The systems work one after the other, alone, with one worker process and one producer process each and an
empty Redis. Each turn begins with 300 calls that do not count, each phase with five, and each round with
another system. A table shows the median over the rounds and the lowest and highest figure.

Every system keeps its results, and carries the same calls, `{"id", "name", "args": {"a", "b"}}`, as JSON or
in its own default encoding. The peers run in their usual configuration with one process, and with a
concurrency of 8 where they have one. They acknowledge messages as they do by default: Celery before it runs
a task. Goondan runs with its defaults, events for Flower and a log line for each call written to a file; it
checks every call's arguments against a schema, keeps a record of its life, runs it under a claim with a
lease, and fences its result."""

_WHY = "[Where the time goes](where-the-time-goes.md) tells what a call costs and what was tried."
_QUICK = "**A quick run: few calls, few rounds. It shows that everything works, and not much more.**"
_VERDICTS = {True: "met", False: "**missed**", None: NOTHING}

_WIDTH = 50
_OURS, _OTHERS = "#2166ac", "#b0b0b0"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, its software, and how busy it was before the run."""

    processor: str
    processors: int
    memory_bytes: int
    system: str
    python: str
    redis: str
    packages: tuple[str, ...]
    #: processes that ran or waited to run, averaged over the minute before
    load: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs were at work before the run began."""
        return self.load > BUSY_SHARE * self.processors

    def lines(self) -> list[str]:
        """Describe the machine in Markdown."""
        busy = (
            "**The machine was busy with other programs: read only large differences.**"
            if self.is_busy
            else "Nothing else to speak of was running."
        )
        return [
            f"- {self.processor}, {self.processors} processors, {self.memory_bytes / 2**30:.0f} GiB",
            f"- {self.system}, Python {self.python}, Redis {self.redis} on loopback with an append-only file",
            f"- {', '.join(self.packages)}",
            f"- load average of the minute before: {self.load:.2f}. {busy}",
        ]


@dataclass(frozen=True, slots=True)
class Run:
    """When, how and where the figures were measured."""

    command: str
    date: str
    seconds: float
    machine: Machine
    systems: Sequence[System]
    is_quick: bool


def this_machine(redis_version: str) -> Machine:
    """Look at this machine."""
    return Machine(
        processor=_processor(),
        processors=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        redis=redis_version,
        packages=tuple(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
        load=os.getloadavg()[0],
    )


def report(run: Run, sections: Sequence[Section], chart: str | None) -> str:
    """Write the report, the first section before anything else; ``chart`` is a file beside it."""
    parts = [
        ["# Benchmarks", "", f"`{run.command}`, {run.date}, {run.seconds:.0f} s.", "", *run.machine.lines()],
        *([[_QUICK]] if run.is_quick else []),
        *(_section(section) for section in sections[:1]),
        _aims(sections),
        *([[f"![The medians as bars]({chart})"]] if chart else []),
        *(_section(section) for section in sections[1:]),
        _systems(run.systems),
        [_METHOD],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def write_chart(charts: Mapping[str, Samples], folder: Path) -> Path:
    """Write ``chart.svg``, or ``chart.txt`` where matplotlib is missing; return the file."""
    if importlib.util.find_spec("matplotlib"):
        file = folder / "chart.svg"
        _draw(charts, file)
    else:
        file = folder / "chart.txt"
        file.write_text("\n".join(text_chart(charts)) + "\n", "utf-8")
    return file


def text_chart(charts: Mapping[str, Samples]) -> list[str]:
    """Return the medians as bars of text, each chart to its own scale."""
    lines = []
    for title, samples in charts.items():
        medians = samples.medians()
        longest, widest = max(medians.values(), default=0) or 1, max(map(len, medians), default=0)
        lines += ["", f"{title}, {samples.unit}"]
        lines += [
            f"{name:<{widest}}  {'#' * max(1, round(_WIDTH * figure / longest))} {number(figure)}"
            for name, figure in medians.items()
        ]
    return lines


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", "", section.text]
    for table in section.tables:
        lines += ["", *([f"### {table.title}", ""] if table.title else []), *table.lines()]
    for failure in section.failures:
        lines += ["", "Failed:", "", "```text", failure, "```"]
    return lines


def _systems(systems: Sequence[System]) -> list[str]:
    rows = [(system.name, system.pool_of(Shape())) for system in systems]
    absent = [system.name for system in SYSTEMS if system not in systems]
    lines = ["## Systems", "", *Table("", ("system", "what runs the calls"), rows).lines()]
    return [*lines, *(["", f"Not installed: {', '.join(absent)}."] if absent else [])]


def _aims(sections: Sequence[Section]) -> list[str]:
    aims = [aim for section in sections for aim in section.aims]
    if not aims:
        return []
    rows = [(aim.text, aim.measured, _VERDICTS[aim.is_met]) for aim in aims]
    return ["## Aims", "", *Table("", ("aim", "measured", "verdict"), rows).lines(), "", _WHY]


def _draw(charts: Mapping[str, Samples], file: Path) -> None:
    height = 0.6 + 0.28 * max(len(samples.of) for samples in charts.values())
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(9, height * len(charts)), layout="constrained"
    )
    panels = figure.subplots(len(charts), squeeze=False)[:, 0]
    for axes, (title, samples) in zip(panels, charts.items(), strict=True):
        names, values = zip(*samples.medians().items(), strict=True)
        drawn = axes.barh(names, values, color=[_OURS if "Goondan" in name else _OTHERS for name in names])
        axes.bar_label(drawn, labels=[number(value) for value in values], padding=3)
        axes.set_title(f"{title} ({samples.unit})", loc="left", fontsize=10)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    with importlib.import_module("matplotlib").rc_context({"svg.fonttype": "none"}):  # text, not outlines
        figure.savefig(file)


def _processor() -> str:
    details = Path("/proc/cpuinfo")
    if details.exists():
        for line in details.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
