from benchmarks.timeline import HandlerRun, longest_gap, longest_idle_wait, spans_of_at_least

ONE, OTHER = 101, 102


def run(worker: int, submitted: float, begun: float, ended: float) -> HandlerRun:
    """Return a run of a handler."""
    return HandlerRun(submitted=submitted, begun=begun, ended=ended, worker=worker)


def test_wait_while_the_other_worker_has_an_idle_slot_is_found() -> None:
    runs = [run(ONE, 0, 0, 10), run(ONE, 1, 10, 11), run(OTHER, 0, 0, 4)]

    assert longest_idle_wait(runs, [ONE, OTHER], 1) == 6  # OTHER is idle from 4, the second call begins at 10


def test_wait_while_every_slot_of_the_other_worker_is_taken_does_not_count() -> None:
    runs = [run(ONE, 0, 0, 5), run(ONE, 0, 5, 6), run(OTHER, 0, 0, 5), run(OTHER, 0, 0, 7)]

    assert longest_idle_wait(runs, [ONE, OTHER], 2) == 0
    assert longest_idle_wait(runs, [ONE, OTHER], 3) == 5


def test_worker_that_ran_nothing_was_idle_throughout() -> None:
    assert longest_idle_wait([run(ONE, 1, 4, 5)], [ONE, OTHER], 8) == 3


def test_call_that_waits_only_for_its_own_worker_does_not_count() -> None:
    assert longest_idle_wait([run(ONE, 0, 3, 4)], [ONE], 1) == 0


def test_call_that_began_before_its_submission_returned_did_not_wait() -> None:
    assert longest_idle_wait([run(ONE, 2, 1, 4)], [ONE, OTHER], 1) == 0


def test_spans_that_follow_each_other_without_a_gap_do_not_overlap() -> None:
    assert spans_of_at_least(2, [(0, 2), (2, 4), (3, 5)]) == [(3, 4)]
    assert spans_of_at_least(1, [(0, 2), (1, 4), (6, 7)]) == [(0, 4), (6, 7)]


def test_longest_gap_may_lie_before_between_and_after_the_busy_spans() -> None:
    assert longest_gap(0, 10, [(5, 6)]) == 5
    assert longest_gap(0, 10, [(-1, 1), (4, 5), (9, 12)]) == 4
    assert longest_gap(0, 10, [(0, 2), (1, 3)]) == 7
    assert longest_gap(0, 10, [(-1, 11)]) == 0
