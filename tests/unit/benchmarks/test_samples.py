import pytest

from benchmarks.samples import Samples, percentile
from benchmarks.systems import CELERY_SOLO, CELERY_THREADS, GOONDAN, HUEY, RAW_LOOP, System


def samples_of(figures: dict[System, list[float]], *, more_is_better: bool = True) -> Samples:
    """Return samples with these figures."""
    samples = Samples("calls/s", more_is_better)
    for system, values in figures.items():
        for value in values:
            samples.add(system, value)
    return samples


def test_the_median_forgives_one_turn_that_was_disturbed() -> None:
    samples = samples_of({GOONDAN: [1_000, 10, 1_020]})

    assert samples.median(GOONDAN) == 1_000


def test_neither_ours_nor_the_floor_is_a_peer() -> None:
    samples = samples_of({GOONDAN: [9], RAW_LOOP: [8], HUEY: [5], CELERY_SOLO: [3]})

    assert samples.best_peer() is HUEY


def test_the_best_is_the_lowest_where_less_is_better() -> None:
    samples = samples_of({HUEY: [2.0], CELERY_SOLO: [1.0]}, more_is_better=False)

    assert samples.best_peer() is CELERY_SOLO


def test_a_system_that_was_not_measured_has_no_ratio() -> None:
    samples = samples_of({GOONDAN: [4]})

    assert samples.best_peer() is None
    assert samples.best_of(CELERY_SOLO, CELERY_THREADS) is None
    assert samples.ratio(GOONDAN, None) is None
    assert samples.ratio(GOONDAN, HUEY) is None
    assert samples.ratio(HUEY, GOONDAN) is None


def test_nothing_is_divided_by_nothing() -> None:
    assert samples_of({GOONDAN: [4], HUEY: [0]}).ratio(GOONDAN, HUEY) is None


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_one_of_the_figures(percent: float, expected: float) -> None:
    assert percentile([float(figure) for figure in range(100, 0, -1)], percent) == expected
