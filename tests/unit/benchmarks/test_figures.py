import pytest

from benchmarks.figures import Cost, Costs, Samples, Table, number, percentile
from benchmarks.systems import CELERY_SOLO, CELERY_THREADS, GOONDAN, HUEY, RAW_LOOP, RQ


def test_median_ignores_one_disturbed_turn() -> None:
    assert Samples("ms", {"a": [1_000, 10, 1_020]}).median("a") == 1_000


def test_neither_ours_nor_raw_loop_is_peer() -> None:
    samples = Samples("ms", {GOONDAN.name: [1], RAW_LOOP.name: [2], HUEY.name: [5], CELERY_SOLO.name: [7]})

    assert samples.best_peer() == HUEY.name


def test_system_that_was_not_measured_has_no_ratio() -> None:
    samples = Samples("ms", {GOONDAN.name: [4]})

    assert samples.best_peer() is None
    assert samples.best_of({CELERY_SOLO.name, CELERY_THREADS.name}) is None
    assert samples.ratio(GOONDAN.name, None) is None
    assert samples.ratio(GOONDAN.name, HUEY.name) is None
    assert samples.ratio(HUEY.name, GOONDAN.name) is None


def test_ratio_to_zero_is_missing() -> None:
    assert Samples("bytes", {"ours": [4], "theirs": [0]}).ratio("ours", "theirs") is None


def test_systems_are_compared_with_ours_and_best_peer() -> None:
    samples = Samples("ms", {GOONDAN.name: [2, 3, 4], HUEY.name: [1.5], RQ.name: [30]})

    table = samples.comparison("p50")

    assert table.header == ("ms", "median", "lowest - highest", "of ours", "of huey")
    assert table.rows == [
        ("Goondan", "3", "2 - 4", "1.00 x", "2.00 x"),
        ("huey", "1.5", "1.5 - 1.5", "0.50 x", "1.00 x"),
        ("rq", "30", "30 - 30", "10.00 x", "20.00 x"),
    ]


def test_processor_and_wall_time_have_separate_reference_peers() -> None:
    costs = Costs(
        {
            GOONDAN.name: [Cost(producer=20, worker=50, redis=30, wall=100, traffic=2_000)],
            HUEY.name: [
                Cost(producer=100, worker=200, redis=100, wall=500, traffic=1_000),
                Cost(producer=80, worker=200, redis=120, wall=300, traffic=1_000),
            ],
            RQ.name: [Cost(producer=300, worker=600, redis=100, wall=200, traffic=9_000)],
        }
    )

    table = costs.table("Batches")

    assert table.header[-2:] == ("of huey", "wall time, of rq")
    assert table.rows == [
        ("Goondan", "20", "50", "30", "100", "100 - 100", "0.25 x", "0.50 x"),
        ("huey", "90", "200", "110", "400", "400 - 400", "1.00 x", "2.00 x"),
        ("rq", "300", "600", "100", "1,000", "1,000 - 1,000", "2.50 x", "1.00 x"),
    ]


def test_costs_are_compared_with_reference_that_is_named() -> None:
    one, two = (Cost(producer=10, worker=total, redis=10, wall=50, traffic=1) for total in (80, 180))
    costs = Costs({"one": [one], "two": [two]})

    assert costs.ratio("two", "one") == 2
    assert costs.table("", "one").header[-2:] == ("of one", "wall time, of one")
    assert [row[-2:] for row in costs.table("", "one").rows] == [("1.00 x", "1.00 x"), ("2.00 x", "1.00 x")]


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_one_of_figures(percent: float, expected: float) -> None:
    assert percentile([float(figure) for figure in range(100, 0, -1)], percent) == expected


@pytest.mark.parametrize(
    ("figure", "text"), [(None, "-"), (0, "0"), (0.1234, "0.123"), (99.94, "99.9"), (1234.5, "1,234")]
)
def test_figures_have_three_significant_digits_or_no_fraction(figure: float | None, text: str) -> None:
    assert number(figure) == text


def test_table_is_aligned() -> None:
    table = Table("", ("name", "calls"), [("a", "1"), ("longer", "1,000,000")])

    assert table.lines() == [
        "| name   |     calls |",
        "| ------ | --------: |",
        "| a      |         1 |",
        "| longer | 1,000,000 |",
    ]
