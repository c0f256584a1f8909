"""The report of a run, in Markdown that also reads well in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import Machine
from benchmarks.section import NOTHING, Section, Table
from benchmarks.shape import Shape
from benchmarks.systems import SYSTEMS, System

_METHOD = """\
## How it is measured

All systems share one private redis-server, each in a database of its own. Each has one worker process and
one producer process; a producer times its own work. The systems take turns, and each round begins with
another one, and each turn with a few calls that do not count. A table shows the median over the rounds and
the lowest and highest figure. Figures move from run to run and from machine to machine: only ratios inside
one run count.

Every system keeps its results, and carries the same calls, `{"id", "name", "args": {"a", "b"}}`, as JSON or
in its own default encoding. The peers run in their usual configuration with one process, and with a
concurrency of 8 where they have one. They acknowledge messages as they do by default: Celery before it runs
a task. Goondan checks every call's arguments against a schema, keeps a record of its life, runs it under a
claim with a lease, and fences its result."""

_WHY = "[Where the time goes](where-the-time-goes.md) tells what a call costs and what was tried."

_VERDICTS = {True: "yes", False: "**no**", None: NOTHING}


@dataclass(frozen=True, slots=True)
class Run:
    """When, how and where the figures were measured."""

    command: str
    date: str
    seconds: float
    machine: Machine
    systems: Sequence[System]
    is_quick: bool


def report(run: Run, sections: Sequence[Section], chart: str | None) -> str:
    """Write the report; ``chart`` is the chart's file, relative to the report."""
    parts = [
        ["# Benchmarks", "", f"`{run.command}`, {run.date}, {run.seconds:.0f} s.", "", *run.machine.lines()],
        *([[_QUICK]] if run.is_quick else []),
        _systems(run.systems),
        _promises(sections),
        *([[f"![The medians as bars]({chart})"]] if chart else []),
        *(section_lines(section) for section in sections),
        [_METHOD],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


_QUICK = "**A quick run: few calls, few rounds. It shows that everything works, and not much more.**"


def section_lines(section: Section) -> list[str]:
    """Write one section."""
    lines = [f"## {section.title}", "", section.text]
    for table in section.tables:
        lines += ["", *([f"### {table.title}", ""] if table.title else []), *table.lines()]
    for failure in section.failures:
        lines += ["", "Failed:", "", "```text", failure, "```"]
    return lines


def _systems(systems: Sequence[System]) -> list[str]:
    rows = [(system.name, system.pool_of(Shape())) for system in systems]
    absent = [system.name for system in SYSTEMS if system not in systems]
    lines = ["## Who takes part", "", *Table("", ("system", "what runs the calls"), rows).lines()]
    return [*lines, *(["", f"Not installed: {', '.join(absent)}."] if absent else [])]


def _promises(sections: Sequence[Section]) -> list[str]:
    promises = [promise for section in sections for promise in section.promises]
    if not promises:
        return []
    rows = [(promise.text, promise.measured, _VERDICTS[promise.is_kept]) for promise in promises]
    table = Table("", ("aim", "measured", "reached"), rows).lines()
    return ["## What is aimed at", "", *table, "", _WHY]
