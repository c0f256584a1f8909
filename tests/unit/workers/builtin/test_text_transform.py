from typing import Any

import pytest

from goondan_tasks.contract.errors import ToolError, ToolInputValidationError
from tests.unit.workers.builtin.conftest import CallTool


@pytest.mark.parametrize(
    ("args", "result", "replacements"),
    [
        ({"search": "a", "replacement": "x"}, "bxnana", 1),
        ({"search": "a", "replacement": "x", "all": True}, "bxnxnx", 3),
        ({"search": "an", "all": True}, "ba", 2),
        ({"search": "q", "replacement": "x", "all": True}, "banana", 0),
        ({"search": ".", "replacement": "x", "all": True}, "banana", 0),
    ],
)
def test_replace_is_literal(call: CallTool, args: dict[str, Any], result: str, replacements: int) -> None:
    answer = call("text-transform__replace", text="banana", **args)

    assert answer == {"original": "banana", "result": result, "replacements": replacements}


def test_replace_refuses_empty_search_and_enormous_result(call: CallTool) -> None:
    with pytest.raises(ToolInputValidationError, match="search"):
        call("text-transform__replace", text="a", search="")
    with pytest.raises(ToolError, match="10000000"):
        call("text-transform__replace", text="a" * 10_000, search="a", replacement="b" * 10_000, all=True)


@pytest.mark.parametrize(
    ("args", "result", "end"),
    [
        ({}, "h🙂llo", 5),
        ({"start": 1, "end": 3}, "🙂l", 3),
        ({"start": -2}, "lo", 5),
        ({"end": -1}, "h🙂ll", -1),
        ({"start": 4, "end": 2}, "", 2),
        ({"start": -(10**30), "end": 10**30}, "h🙂llo", 10**30),
    ],
)
def test_slice_counts_characters(call: CallTool, args: dict[str, int], result: str, end: int) -> None:
    answer = call("text-transform__slice", text="h🙂llo", **args)

    start = args.get("start", 0)
    assert answer == {
        "original": "h🙂llo",
        "result": result,
        "start": start,
        "end": end,
        "length": len(result),
    }


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ({"text": "a\nb\n"}, ["a", "b", ""]),
        ({"text": "a, b, c", "delimiter": ", ", "maxParts": 2}, ["a", "b"]),
        ({"text": "a🙂", "delimiter": ""}, ["a", "🙂"]),
        ({"text": ""}, [""]),
    ],
)
def test_split_keeps_first_parts(call: CallTool, args: dict[str, Any], parts: list[str]) -> None:
    answer = call("text-transform__split", **args)

    assert answer == {"delimiter": args.get("delimiter", "\n"), "count": len(parts), "parts": parts}


def test_join_writes_numbers_and_booleans_as_json(call: CallTool) -> None:
    answer = call("text-transform__join", parts=["a", 1, 2.5, True, False, 10**20], delimiter="-")

    assert answer == {"delimiter": "-", "count": 6, "result": "a-1-2.5-true-false-100000000000000000000"}
    assert call("text-transform__join", parts=["a", "b"])["result"] == "a\nb"
    assert call("text-transform__join", parts=[])["result"] == ""


def test_join_refuses_other_parts_and_enormous_result(call: CallTool) -> None:
    with pytest.raises(ToolInputValidationError, match="parts"):
        call("text-transform__join", parts=["a", None])
    with pytest.raises(ToolError, match="10000000"):
        call("text-transform__join", parts=["a"] * 10_000, delimiter="x" * 10_000)


@pytest.mark.parametrize(("mode", "result"), [("start", "a b \n"), ("end", " \ta b"), ("both", "a b")])
def test_trim_removes_white_space_at_ends(call: CallTool, mode: str, result: str) -> None:
    answer = call("text-transform__trim", text=" \ta b \n", mode=mode)

    assert answer == {"original": " \ta b \n", "result": result, "mode": mode, "trimmedLength": len(result)}
    assert call("text-transform__trim", text=" a ")["mode"] == "both"


@pytest.mark.parametrize(("to", "result"), [("upper", "GRÜSSE"), ("lower", "grüße")])
def test_case_changes_case(call: CallTool, to: str, result: str) -> None:
    assert call("text-transform__case", text="Grüße", to=to) == {
        "original": "Grüße",
        "result": result,
        "to": to,
    }


def test_case_knows_only_upper_and_lower(call: CallTool) -> None:
    with pytest.raises(ToolInputValidationError, match="to"):
        call("text-transform__case", text="a", to="title")
