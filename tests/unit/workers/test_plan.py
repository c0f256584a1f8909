"""Whether the handler of a tool is slow."""

import pytest

from workers.plan import SlowToolDetector


@pytest.mark.parametrize(
    ("wall", "idle", "runs", "is_slow"),
    [
        (0.006, 0.006, 1, True),
        (0.006, 0.0, 1, True),
        (0.003, 0.0029, 3, True),
        (0.003, 0.0029, 2, False),
        (0.003, 0.0001, 100, False),
        (0.0005, 0.0004, 100, False),
    ],
)
def test_long_or_repeatedly_waiting_tool_is_slow(wall: float, idle: float, runs: int, is_slow: bool) -> None:
    detector = SlowToolDetector()
    for _ in range(runs):
        detector.learn(wall, idle)
    assert detector.is_slow is is_slow


def test_waits_that_are_tools_nature_do_not_count() -> None:
    detector = SlowToolDetector(most_idle=0.005)
    for _ in range(100):
        detector.learn(0.004, 0.004)
    assert not detector.is_slow
    detector.learn(0.006, 0.0)
    assert detector.is_slow


def test_one_short_run_clears_tool() -> None:
    detector = SlowToolDetector()
    detector.learn(1.0, 1.0)
    detector.learn(0.0002, 0.0001)
    assert not detector.is_slow
    for _ in range(2):  # what went before does not count any more
        detector.learn(0.003, 0.003)
    assert not detector.is_slow


def test_handler_that_raises_is_learned_from_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.plan.monotonic", lambda: 0.0)
    monkeypatch.setattr("workers.plan.thread_time", lambda: 0.0)
    detector = SlowToolDetector()
    detector.note_slow()
    with pytest.raises(IndexError):
        detector.timed(lambda: [][1])
    assert not detector.is_slow
