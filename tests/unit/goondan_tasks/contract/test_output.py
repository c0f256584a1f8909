"""What handlers return: outputs, pending results and progress."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.contract.errors import ToolError, ToolOutputError
from goondan_tasks.contract.names import callback_token, callback_url
from goondan_tasks.contract.output import (
    LONGEST_HANDLE,
    Pending,
    Progress,
    encoded_output,
    pending_of,
    report_of,
)


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
def test_unfinished_work_in_output_names_place_and_remedy(make: Any, reason: str, what_to_do: str) -> None:
    error = error_of(make())

    assert error.message.startswith(f"a__b returned a value that is not JSON: {reason}")
    assert what_to_do in error.suggestion


def test_future_in_output_is_named() -> None:
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


def test_cyclic_or_deep_output_is_refused_without_place() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = math.nan
    for _ in range(100_000):
        deep = [deep]

    assert error_of(circle).suggestion == ToolOutputError.suggestion
    assert "nested too deeply" in error_of(deep).message


@pytest.mark.requirement("result.async-form")
def test_async_form_is_pending_with_other_keys_as_output() -> None:
    form = {"__async": True, "handle": "build-1", "message": "begun", "n": 1}
    assert pending_of(form) == Pending("build-1", {"message": "begun", "n": 1})
    assert pending_of({"__async": True, "handle": 7}) == Pending("7", None)


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [], {}, {"handle": "x"}, {"__async": False, "handle": "x"}, {"__async": 1, "handle": "x"}],
)
def test_anything_else_is_result_itself(value: Any) -> None:
    assert pending_of(value) is None


@pytest.mark.parametrize("handle", [None, "", True, 1.5, {}, "x" * (LONGEST_HANDLE + 1)])
def test_pending_without_usable_handle_is_refused(handle: Any) -> None:
    with pytest.raises(ToolOutputError, match="handle"):
        pending_of({"__async": True, "handle": handle})


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("nan"), float("inf"), 1e12])
def test_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ToolOutputError, match="ttl_seconds"):
        Pending("x", ttl_seconds=seconds)


def test_callback_belongs_to_one_run_at_operators_url() -> None:
    url = callback_url("https://x.example/hooks/", "a/b", "token-1")
    assert url == f"https://x.example/hooks/callbacks/a%2Fb/{callback_token('a/b', 'token-1')}"
    tokens = {callback_token(*of) for of in (("a", "token-1"), ("a", "token-2"), ("b", "token-1"))}
    assert len(tokens) == 3
    assert "token-1" not in url


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        ((0,), b'{"done":0}'),
        ((1.5, 3), b'{"done":1.5,"total":3}'),
        ((2**53, 2**53, ""), b'{"done":9007199254740992,"total":9007199254740992,"message":""}'),
        ((5, 3, "more than all"), b'{"done":5,"total":3,"message":"more than all"}'),
        ((1, None, "한글 \x00 😀"), '{"done":1,"message":"한글 \\u0000 😀"}'.encode()),
        ((1, 2, "x" * 1000), b'{"done":1,"total":2,"message":"' + b"x" * 1000 + b'"}'),
    ],
)
def test_valid_progress_is_written_and_read_back(arguments: tuple[Any, ...], report: bytes) -> None:
    assert report_of(*arguments) == report
    progress = Progress.from_redis(b"1790000000000 " + report)
    told = (progress.done, progress.total, progress.message)
    assert told == (*arguments, None, None)[:3]
    assert progress.updated_at == "2026-09-21T14:13:20.000Z"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((float("nan"),), "done must be a number from 0"),
        ((float("inf"),), "done must be a number from 0"),
        ((-1,), "done must be a number from 0"),
        ((10**400,), "done must be a number from 0"),
        ((1, -0.5), "total must be a number from 0"),
        ((None,), "done must be a number, not NoneType"),
        ((True,), "done must be a number, not bool"),
        (("3",), "done must be a number, not str"),
        ((1, "10"), "total must be a number, not str"),
        ((1, 2, 3), "message must be text, not int"),
        ((1, 2, "x" * 1001), "message has 1001 characters; at most 1000"),
    ],
)
def test_invalid_progress_is_error_that_says_so(arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(ToolError, match=fault):
        report_of(*arguments)


def test_lone_surrogate_in_output_is_replaced() -> None:
    output = {"file": "caf\udce9", "\ud800": ["\ud83d\ude00", "kept", 1]}

    data, told = encoded_output(output, "a__b")

    assert told == {"file": "caf\ufffd", "\ufffd": ["\U0001f600", "kept", 1]}
    assert serializer.decode(data) == told


def test_output_that_is_text_already_stays_same_object() -> None:
    output = {"text": "caf\u00e9 \\ud800"}

    assert encoded_output(output, "a__b").output is output


def test_lone_surrogate_in_progress_or_handle_is_replaced() -> None:
    assert serializer.decode(report_of(1, 2, "\ud800 of")) == {"done": 1, "total": 2, "message": "\ufffd of"}
    assert Pending("job-\udcff").handle == "job-\ufffd"


@pytest.mark.parametrize("kept", [b"", b"x {}", b"1 {", b"1 []", b"1 {}", b"1"])
def test_unreadable_progress_is_value_error(kept: bytes) -> None:
    with pytest.raises(ValueError):
        Progress.from_redis(kept)
