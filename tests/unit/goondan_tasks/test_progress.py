"""What may be told as progress, and how it is read back."""

from typing import Any

import pytest

from goondan_tasks.errors import ToolError
from goondan_tasks.progress import Progress, report_of


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
def test_what_can_be_told_is_written_and_read_back(arguments: tuple[Any, ...], report: bytes) -> None:
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
        ((1, 2, 3), "message must be a text, not int"),
        ((1, 2, "x" * 1001), "message has 1001 characters; at most 1000"),
        ((1, 2, "\ud800"), "message cannot be written as UTF-8"),
    ],
)
def test_what_cannot_be_told_is_an_error_that_says_so(arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(ToolError, match=fault):
        report_of(*arguments)


@pytest.mark.parametrize("kept", [b"", b"x {}", b"1 {", b"1 []", b"1 {}", b"1"])
def test_what_cannot_be_read_is_a_value_error(kept: bytes) -> None:
    with pytest.raises(ValueError):
        Progress.from_redis(kept)
