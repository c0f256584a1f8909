from benchmarks.chart import text_chart
from benchmarks.section import Bars


def test_bars_are_drawn_in_text_to_one_scale() -> None:
    lines = text_chart([Bars("Speed", "calls/s", {"ours": 1_000.0, "theirs": 500.0, "none": 0.0})])

    assert lines == [
        "",
        "Speed, calls/s",
        f"ours    {'#' * 50} 1,000",
        f"theirs  {'#' * 25} 500",
        "none    # 0",
    ]


def test_no_bars_are_no_lines_below_the_title() -> None:
    assert text_chart([Bars("Speed", "calls/s", {})]) == ["", "Speed, calls/s"]
