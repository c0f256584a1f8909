import json
import time
from typing import Any

import pytest

from goondan_tasks.contract.errors import ToolError, ToolInputValidationError
from tests.unit.workers.builtin.conftest import CallTool

DATA = json.dumps(
    {
        "items": [{"name": "a"}, {"name": None}],
        "a.b": {"c d": 1, 'it"s': 2, "0": "zero"},
        "flag": False,
        "big": 10**30,
        "text": "한🙂",
    }
)


@pytest.mark.parametrize(
    ("path", "found", "value"),
    [
        (".", True, json.loads(DATA)),
        ("", True, json.loads(DATA)),
        (".items[0].name", True, "a"),
        ("items[0].name", True, "a"),
        ("items.0.name", True, "a"),
        ("items[1].name", True, None),
        ("items[2].name", False, None),
        ("items[99999999999999999999]", False, None),
        ("items.name", False, None),
        ('["a.b"]["c d"]', True, 1),
        ("['a.b']['it\"s']", True, 2),
        ("['a.b'][0]", True, "zero"),
        (".big", True, 10**30),
        ("flag.x", False, None),
        ("text[0]", False, None),
        ("__class__", False, None),
    ],
)
def test_query_follows_path(call: CallTool, path: str, found: bool, value: Any) -> None:
    result = call("json-query__query", data=DATA, path=path)

    assert result == {"path": path, "found": found, "value": value}


def test_query_returns_whole_without_path(call: CallTool) -> None:
    assert call("json-query__query", data="[1]") == {"path": ".", "found": True, "value": [1]}


@pytest.mark.parametrize("path", ["..", "a..b", "a.", "[", "[-1]", "[x]", '["open', "a]", "a[0"])
def test_invalid_path_is_reported_with_position(call: CallTool, path: str) -> None:
    with pytest.raises(ToolError, match="Invalid path at position"):
        call("json-query__query", data=DATA, path=path)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "nope",
        "NaN",
        "[Infinity]",
        "[-Infinity]",
        "1e999",
        "[" * 100_000,
        "9" * 5_000,
        '{"a":' * 50_000,
    ],
)
@pytest.mark.parametrize("export", ["query", "pick", "count", "flatten"])
def test_text_that_is_not_json_is_error(call: CallTool, export: str, data: str) -> None:
    args: dict[str, Any] = {"keys": []} if export == "pick" else {}

    with pytest.raises(ToolError, match="Failed to parse input as JSON"):
        call(f"json-query__{export}", data=data, **args)


def test_pick_keeps_existing_keys(call: CallTool) -> None:
    result = call("json-query__pick", data='{"a": 1, "b": null, "c": 3}', keys=["b", "a", "x"])

    assert result == {"keys": ["b", "a", "x"], "result": {"b": None, "a": 1}}


@pytest.mark.parametrize("data", ["[]", "null", '"a"', "1"])
def test_pick_needs_object(call: CallTool, data: str) -> None:
    with pytest.raises(ToolError, match="Input data must be a JSON object for pick operation"):
        call("json-query__pick", data=data, keys=["a"])


@pytest.mark.parametrize(
    ("data", "count", "kind"),
    [
        ("[1, 2]", 2, "array"),
        ('{"a": 1}', 1, "object"),
        ('"한🙂"', 2, "string"),
        ("7", 1, "number"),
        ("7.5", 1, "number"),
        ("false", 1, "boolean"),
        ("null", 0, "null"),
    ],
)
def test_count_returns_number_of_values_held(call: CallTool, data: str, count: int, kind: str) -> None:
    assert call("json-query__count", data=data) == {"path": ".", "count": count, "type": kind}


def test_count_follows_path_and_tells_missing_value(call: CallTool) -> None:
    assert call("json-query__count", data=DATA, path="items")["count"] == 2
    with pytest.raises(ToolError, match="no value at path 'nothing'"):
        call("json-query__count", data=DATA, path="nothing")


@pytest.mark.parametrize(
    ("depth", "result"),
    [
        (0, [1, [2, [3, [4]]], []]),
        (1, [1, 2, [3, [4]]]),
        (2, [1, 2, 3, [4]]),
        (10**30, [1, 2, 3, 4]),
    ],
)
def test_flatten_goes_down_to_depth(call: CallTool, depth: int, result: list[Any]) -> None:
    answer = call("json-query__flatten", data="[1, [2, [3, [4]]], []]", depth=depth)

    assert answer == {"depth": depth, "count": len(result), "result": result}


def test_flatten_goes_one_level_down_by_default(call: CallTool) -> None:
    assert call("json-query__flatten", data="[[1], [[2]]]")["result"] == [1, [2]]


def test_flatten_of_large_deep_array_is_fast(call: CallTool) -> None:
    data = "[" + "1," * 300_000 + "[" * 500 + "]" * 500 + "]"
    started = time.monotonic()

    result = call("json-query__flatten", data=data, depth=1_000_000)

    assert result["count"] == 300_000
    assert time.monotonic() - started < 60


def test_flatten_needs_array_and_depth(call: CallTool) -> None:
    with pytest.raises(ToolError, match="Input data must be a JSON array for flatten operation"):
        call("json-query__flatten", data="{}")
    with pytest.raises(ToolInputValidationError, match="depth"):
        call("json-query__flatten", data="[]", depth=-1)
