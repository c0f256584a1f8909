from benchmarks.timeline import HandlerRun, longest_gap, longest_idle_wait, spans_of_at_least

ONE, OTHER = 101, 102


def run(worker: int, submitted: float, begun: float, ended: float) -> HandlerRun:
    """Return a run of a handler."""
    return HandlerRun(submitted=submitted, begun=begun, ended=ended, worker=worker)


def test_wait_beside_other_workers_idle_slot_counts() -> None:
    runs = [run(ONE, 0, 0, 10), run(ONE, 1, 10, 11), run(OTHER, 0, 0, 4)]

    assert longest_idle_wait(runs, [ONE, OTHER], 1) == 6  # OTHER is idle from 4, the second call begins at 10


def test_wait_beside_fully_busy_worker_does_not_count() -> None:
    runs = [run(ONE, 0, 0, 5), run(ONE, 0, 5, 6), run(OTHER, 0, 0, 5), run(OTHER, 0, 0, 7)]

    assert longest_idle_wait(runs, [ONE, OTHER], 2) == 0
    assert longest_idle_wait(runs, [ONE, OTHER], 3) == 5


def test_worker_that_ran_nothing_was_idle_throughout() -> None:
    assert longest_idle_wait([run(ONE, 1, 4, 5)], [ONE, OTHER], 8) == 3


def test_wait_for_own_worker_alone_does_not_count() -> None:
    assert longest_idle_wait([run(ONE, 0, 3, 4)], [ONE], 1) == 0


def test_call_begun_before_submission_returned_never_waited() -> None:
    assert longest_idle_wait([run(ONE, 2, 1, 4)], [ONE, OTHER], 1) == 0


def test_adjacent_spans_do_not_overlap() -> None:
    assert spans_of_at_least(2, [(0, 2), (2, 4), (3, 5)]) == [(3, 4)]
    assert spans_of_at_least(1, [(0, 2), (1, 4), (6, 7)]) == [(0, 4), (6, 7)]


def test_longest_gap_is_before_between_or_after_spans() -> None:
    assert longest_gap(0, 10, [(5, 6)]) == 5
    assert longest_gap(0, 10, [(-1, 1), (4, 5), (9, 12)]) == 4
    assert longest_gap(0, 10, [(0, 2), (1, 3)]) == 7
    assert longest_gap(0, 10, [(-1, 11)]) == 0
