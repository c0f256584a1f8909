"""Which tools get threads of their own."""

import pytest

from goondan_tasks.calls import new_call
from workers.concurrency.lasting_tools import LastingTools, Stopwatch

CALL = new_call("coder", "bash__exec", {}, {})
OTHER = new_call("coder", "bash__read", {}, {})


def a_run(wall: float, processor: float) -> Stopwatch:
    """Return the watch of a run that has taken so many seconds of both."""
    walls, processors = iter([0.0, wall]), iter([0.0, processor])
    stopwatch = Stopwatch(lambda: next(walls), lambda: next(processors))
    with stopwatch:
        pass
    return stopwatch


@pytest.mark.parametrize(
    ("wall", "processor", "runs", "lasts"),
    [
        (0.006, 0.0, 1, True),
        (0.006, 0.006, 1, True),
        (0.003, 0.0001, 3, True),
        (0.003, 0.0001, 2, False),
        (0.003, 0.0029, 100, False),
        (0.0005, 0.0001, 100, False),
    ],
)
def test_a_tool_that_takes_long_or_waits_again_and_again_lasts(
    wall: float, processor: float, runs: int, lasts: bool
) -> None:
    tools = LastingTools()
    for _ in range(runs):
        tools.learn(CALL, a_run(wall, processor))
    assert tools.has(CALL) is lasts
    assert not tools.has(OTHER)


def test_one_short_run_clears_a_tool() -> None:
    tools = LastingTools()
    tools.learn(CALL, a_run(1.0, 0.0))
    tools.learn(CALL, a_run(0.0002, 0.0001))
    assert not tools.has(CALL)
    for _ in range(2):  # what went before does not count any more
        tools.learn(CALL, a_run(0.003, 0.0))
    assert not tools.has(CALL)


def test_nothing_is_learned_from_a_call_whose_handler_has_not_run() -> None:
    tools, taken = LastingTools(), a_run(0.0002, 0.0001)
    assert taken.take() is not None
    tools.learn(CALL, a_run(1.0, 0.0))
    for stopwatch in (Stopwatch(), taken):
        tools.learn(CALL, stopwatch)
    assert tools.has(CALL)
