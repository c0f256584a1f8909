"""Of all results that a call is offered one counts."""

from typing import Any

import pytest

from workers.concurrency.first_only import FirstOnly


class Desk:
    """Notes what becomes of each result."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, result: Any, *, still_runs: bool = False) -> None:
        self.notes.append(f"{result}{', still runs' if still_runs else ''}")

    def take_late(self, result: Any) -> None:
        self.notes.append(f"{result}, late")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_run_that_ends_first_has_its_result(desk: Desk) -> None:
    first: Any = FirstOnly(desk.take, desk.take_late)
    first("done")
    assert not first.answer("too slow")
    assert desk.notes == ["done"]


def test_what_is_answered_for_a_run_counts_and_its_own_result_is_late(desk: Desk) -> None:
    first: Any = FirstOnly(desk.take, desk.take_late)
    assert [first.answer("too slow"), first.answer("cancelled")] == [True, False]
    first("done")
    assert desk.notes == ["too slow, still runs", "done, late"]
