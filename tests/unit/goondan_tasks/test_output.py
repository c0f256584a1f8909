"""What a handler may return, and what it is told that returns something else."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from goondan_tasks.errors import ToolOutputError
from goondan_tasks.output import encoded_output


async def work() -> int:
    return 1


async def stream() -> AsyncIterator[int]:
    yield 1


def count() -> Iterator[int]:
    yield 1


def error_of(output: Any) -> ToolOutputError:
    with pytest.raises(ToolOutputError) as raised:
        encoded_output(output, "a__b")
    return raised.value


@pytest.mark.parametrize(
    ("make", "reason", "what_to_do"),
    [
        (work, "output is unfinished work (coroutine 'work')", "`await`"),
        (lambda: {"a": [0, work()]}, "output.a[1] is unfinished work (coroutine 'work')", "`await`"),
        (lambda: {"a b": (work(), work())}, 'output["a b"][0] is unfinished work (coroutine', "`await`"),
        (
            lambda: {"late": work(), "first": {count()}},
            "output.late is unfinished work (coroutine",
            "`await`",
        ),
        (lambda: [{work()}], "output[0][0] is unfinished work (coroutine", "`await`"),
        (stream, "output is unfinished work (async generator 'stream')", "async for"),
        (count, "output is unfinished work (generator 'count')", "list("),
        (lambda: {"m": map(str, [1])}, "output.m is unfinished work (map)", "list("),
    ],
)
def test_unfinished_work_in_an_output_is_named_with_its_place_and_what_to_do(
    make: Any, reason: str, what_to_do: str
) -> None:
    error = error_of(make())

    assert error.message.startswith(f"a__b returned a value that is not JSON: {reason}")
    assert what_to_do in error.suggestion


def test_future_in_an_output_is_named() -> None:
    async def run() -> ToolOutputError:
        return error_of({"x": asyncio.get_running_loop().create_future()})

    assert "output.x is unfinished work (Future)" in asyncio.run(run()).message


def test_coroutine_that_something_runs_already_is_left_alone() -> None:
    async def run() -> int:
        inner = asyncio.current_task()
        assert inner is not None
        error_of([inner.get_coro()])
        return await work()

    assert asyncio.run(run()) == 1


def test_what_holds_itself_or_is_nested_deeply_is_refused_without_a_place() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = math.nan
    for _ in range(100_000):
        deep = [deep]

    assert error_of(circle).suggestion == ToolOutputError.suggestion
    assert "nested too deeply" in error_of(deep).message
