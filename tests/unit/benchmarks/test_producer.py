from collections.abc import Iterator, Sequence

import pytest

from benchmarks.producer import burst, one_at_a_time, stream
from benchmarks.workload import Call, Wire


class Echo:
    """A producer whose system answers at once, with what it was told to or with the arguments."""

    def __init__(self, answer: Wire | None = None) -> None:
        self.submissions: list[int] = []
        self._answer = answer

    def submit_each(self, calls: Sequence[Call]) -> list[Call]:
        self.submissions += [1] * len(calls)
        return list(calls)

    def submit_batch(self, calls: Sequence[Call]) -> list[Call]:
        self.submissions.append(len(calls))
        return list(calls)

    def outputs(self, handles: Sequence[Call]) -> list[Wire]:
        return [self._answer or call.args for call in handles]


@pytest.fixture(autouse=True)
def one_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BENCH_QUEUES", "q")
    yield


def test_burst_submits_every_call_in_batches() -> None:
    producer = Echo()

    answer = burst(producer, {"calls": 120, "batch": 50})

    assert producer.submissions == [50, 50, 20]
    assert answer["ended"] > 0


def test_batch_of_one_submits_calls_singly() -> None:
    producer = Echo()

    burst(producer, {"calls": 3, "batch": 1})

    assert producer.submissions == [1, 1, 1]


def test_system_that_answers_something_else_has_no_figures() -> None:
    with pytest.raises(ValueError, match="4 of 4 outputs are wrong"):
        burst(Echo({"a": "other"}), {"calls": 4, "batch": 1})


def test_one_at_a_time_times_every_call() -> None:
    producer = Echo()

    answer = one_at_a_time(producer, {"calls": 7})

    assert len(answer["milliseconds"]) == 7
    assert answer["ended"] * 1000 == pytest.approx(sum(answer["milliseconds"]))
    assert producer.submissions == [1] * 7


def test_stream_submits_batches_and_returns_where_calls_ran() -> None:
    producer = Echo({"begun": 1.0, "ended": 2.0, "worker": 7})

    answer = stream(
        producer, {"batches": [[["short", 0.1], ["long", 1.0]], [["short", 0.1]]], "interval": 0.0}
    )

    assert producer.submissions == [2, 1]
    assert [run.pop("submitted") > 0 for run in answer["runs"]] == [True] * 3
    assert answer["runs"] == [{"begun": 1.0, "ended": 2.0, "worker": 7}] * 3
