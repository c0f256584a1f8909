"""Which tools get threads of their own."""

import pytest

from goondan_tasks.new_call import new_call
from workers.concurrency.lasting_tools import RUNS_APART, LastingTools, Stopwatch

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
        (0.050, 0.0, 1, True),
        (0.050, 0.050, 1, True),
        (0.006, 0.006, 100, True),
        (0.003, 0.0001, 4, True),
        (0.003, 0.0001, 2, False),
        (0.003, 0.0029, 1000, False),
        (0.0005, 0.0001, 1000, False),
    ],
)
def test_a_tool_that_takes_long_or_waits_on_the_average_lasts(
    wall: float, processor: float, runs: int, lasts: bool
) -> None:
    tools = LastingTools()
    for _ in range(runs):
        tools.learn(CALL, a_run(wall, processor))
    assert tools.has(CALL) is lasts
    assert not tools.has(OTHER)


def test_a_short_tool_that_waits_for_the_interpreter_now_and_then_stays_in_company() -> None:
    tools = LastingTools()
    for _ in range(100):
        for wall in (0.006, *[0.0003] * 10):
            tools.learn(CALL, a_run(wall, 0.0002))
            assert not tools.has(CALL)


def test_nothing_is_learned_from_a_call_whose_handler_has_not_run() -> None:
    tools, stopwatch = LastingTools(), a_run(1.0, 0.0)
    tools.learn(CALL, Stopwatch())
    assert not tools.has(CALL)
    tools.learn(CALL, stopwatch)
    for _ in range(RUNS_APART):
        tools.learn(CALL, stopwatch)  # what was taken once
    assert tools.has(CALL)


def test_a_tool_is_tried_in_company_again() -> None:
    tools = LastingTools()
    tools.learn(CALL, a_run(1.0, 0.0))
    for _ in range(RUNS_APART):
        assert tools.has(CALL)
        tools.learn(CALL, a_run(0.003, 0.0))  # on threads of their own even short ones wait
    assert not tools.has(CALL)
    tools.learn(CALL, a_run(0.0003, 0.0))
    assert not tools.has(CALL)
