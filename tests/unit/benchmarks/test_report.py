from dataclasses import replace

import pytest

from benchmarks.machine import Machine
from benchmarks.report import Run, report
from benchmarks.samples import Samples
from benchmarks.section import Section, Table, at_least, at_most, comparison, number
from benchmarks.systems import GOONDAN, HUEY, RQ, SYSTEMS

MACHINE = Machine(
    processor="Some processor",
    processors=2,
    memory_bytes=4 * 2**30,
    system="Linux 6",
    python="3.11.7",
    redis="7.0.15",
    packages=("huey 3.5.4",),
    load=0.1,
)
RUN = Run("python -m benchmarks", "2026-02-01 10:00 UTC", 61.4, MACHINE, SYSTEMS, is_quick=False)


def test_a_table_is_aligned() -> None:
    table = Table("", ("name", "calls/s"), [("a", "1"), ("longer", "1,000,000")])

    assert table.lines() == [
        "| name   |   calls/s |",
        "| ------ | --------: |",
        "| a      |         1 |",
        "| longer | 1,000,000 |",
    ]


def test_systems_are_compared_with_ours_and_with_the_best_peer() -> None:
    samples = Samples("calls/s", of={GOONDAN: [2_000, 3_000, 4_000], HUEY: [1_500], RQ: [300]})

    table = comparison("End to end", samples)

    assert table.header == ("calls/s, more is better", "median", "lowest - highest", "of ours", "of huey")
    assert table.rows == [
        ("Goondan", "3,000", "2,000 - 4,000", "1.00 x", "2.00 x"),
        ("huey", "1,500", "1,500 - 1,500", "0.50 x", "1.00 x"),
        ("rq", "300", "300 - 300", "0.10 x", "0.20 x"),
    ]


@pytest.mark.parametrize(
    ("figure", "text"), [(None, "-"), (0, "0"), (0.1234, "0.123"), (99.94, "99.9"), (1234.5, "1,234")]
)
def test_figures_have_three_digits_or_none_after_the_point(figure: float | None, text: str) -> None:
    assert number(figure) == text


def test_the_report_says_which_aims_were_reached() -> None:
    aims = [
        at_least("speed", 1.6, 1.5),
        at_most("memory", 2_600, 2_560, "bytes"),
        at_most("cost", None, 20, "%"),
    ]

    text = report(RUN, [Section("Case", "What it is.", promises=aims)], chart=None)

    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "| speed: at least 1.5 x | 1.60 x | yes |" in rows
    assert "| memory: at most 2,560 bytes | 2,600 bytes | **no** |" in rows
    assert "| cost: at most 20 % | - | - |" in rows


def test_a_run_on_a_busy_machine_says_so() -> None:
    busy = replace(RUN, machine=replace(MACHINE, load=1.9))

    assert "The machine was busy" not in report(RUN, [], chart=None)
    assert "The machine was busy" in report(busy, [], chart=None)


def test_a_quick_run_says_so() -> None:
    assert "A quick run" not in report(RUN, [], chart=None)
    assert "A quick run" in report(replace(RUN, is_quick=True), [], chart=None)


def test_who_is_not_installed_and_who_failed_is_named() -> None:
    run = replace(RUN, systems=[system for system in SYSTEMS if system is not RQ])

    text = report(
        run, [Section("Case", "What it is.", failures=["huey: no answer within 600 s."])], chart="c.svg"
    )

    assert "Not installed: rq." in text
    assert "huey: no answer within 600 s." in text
    assert "(c.svg)" in text
