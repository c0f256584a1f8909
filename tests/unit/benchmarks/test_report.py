from dataclasses import replace

from benchmarks.figures import Aim, Samples, Section, Table, at_most
from benchmarks.report import Machine, Run, report, text_chart
from benchmarks.systems import RQ, SYSTEMS

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


def test_report_says_which_aims_were_met() -> None:
    aims = [
        Aim("calls lost: none", "0 of 9", True),
        at_most("memory", 2_600, 2_560, "bytes"),
        at_most("cost", None, 20, "%"),
    ]

    text = report(RUN, [Section("Case", "What it is.", aims=aims)], chart=None)

    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "| calls lost: none | 0 of 9 | met |" in rows
    assert "| memory: at most 2,560 bytes | 2,600 bytes | **missed** |" in rows
    assert "| cost: at most 20 % | - | - |" in rows


def test_report_notes_busy_machine() -> None:
    busy = replace(RUN, machine=replace(MACHINE, load=1.9))

    assert "The machine was busy" not in report(RUN, [], chart=None)
    assert "The machine was busy" in report(busy, [], chart=None)


def test_report_notes_quick_run() -> None:
    assert "A quick run" not in report(RUN, [], chart=None)
    assert "A quick run" in report(replace(RUN, is_quick=True), [], chart=None)


def test_missing_and_failed_systems_are_named() -> None:
    run = replace(RUN, systems=[system for system in SYSTEMS if system is not RQ])

    text = report(
        run, [Section("Case", "What it is.", failures=["huey: no answer within 600 s."])], chart="c.svg"
    )

    assert "Not installed: rq." in text
    assert "huey: no answer within 600 s." in text
    assert "(c.svg)" in text


def test_tables_of_first_section_come_before_everything_else() -> None:
    sections = [
        Section(name, "", [Table("", (name,), [("1",)])], [at_most("aim", 1, 1)])
        for name in ("first", "second")
    ]

    text = report(RUN, sections, chart="c.svg")

    parts = ["| first |", "## Aims", "(c.svg)", "| second |", "## Systems"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_bars_are_drawn_in_text_to_one_scale() -> None:
    lines = text_chart({"Cost": Samples("μs", {"ours": [500], "theirs": [1_000], "none": [0]})})

    assert lines == [
        "",
        "Cost, μs",
        f"ours    {'#' * 25} 500",
        f"theirs  {'#' * 50} 1,000",
        "none    # 0",
    ]


def test_empty_panel_has_only_its_title() -> None:
    assert text_chart({"Cost": Samples("μs")}) == ["", "Cost, μs"]
