"""The JSON on the wire."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.serializer import DEEPEST, NotJsonError, decode, encode

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_every_json_value_survives_wire(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.requirement("json.values")
@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "uuid", "__value__": "x"},
        {"__type__": "datetime", "__value__": "2026-01-01T00:00:00"},
        {"n": 2**70, "m": -(2**64)},
        {"text": "한글 😀 \x00 \\ud800"},
        [],
        None,
    ],
)
def test_odd_looking_json_is_unchanged(value: Any) -> None:
    assert decode(encode(value)) == value


def test_tuple_is_list() -> None:
    assert encode((1, 2)) == b"[1,2]"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "float values"),
        (float("inf"), "float values"),
        ("\ud800", "lone surrogate"),
        ({"a": {1, 2}}, "set"),
        (b"bytes", "bytes"),
    ],
)
def test_value_without_json_form_is_refused_with_reason(value: Any, reason: str) -> None:
    with pytest.raises(NotJsonError, match=reason):
        encode(value)


def test_lone_surrogates_are_replaced_on_request() -> None:
    assert encode({"a": "\ud800"}, repairs=True) == '{"a":"\ufffd"}'.encode()
    assert decode(rb'["\ud83d\ude00", "\ud83d", "\\ud83d"]', repairs=True) == [
        "\U0001f600",
        "\ufffd",
        "\\ud83d",
    ]


def test_cycle_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotJsonError, match="Circular"):
        encode(value)


def nested(levels: int, text: str = "") -> Any:
    value: Any = text
    for level in range(levels):
        value = [value, text] if level % 2 else {text: value, "x": text}
    return value


@pytest.mark.parametrize("text", ["", "[" * 300, "]" * 300, '"', "\\", '\\"[', '"]', "\n{", "é}"])
def test_as_many_levels_are_allowed_on_each_python(text: str) -> None:
    assert decode(encode(nested(DEEPEST, text), DEEPEST)) == nested(DEEPEST, text)
    with pytest.raises(NotJsonError, match="deep"):
        encode(nested(DEEPEST + 1, text), DEEPEST)


def test_deep_nesting_is_refused_both_ways() -> None:
    with pytest.raises(NotJsonError, match="deep"):
        encode(nested(100_000))
    with pytest.raises(NotJsonError, match="deep"):
        decode("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "-Infinity",
        '{"a":1}x',
        "'a'",
        '"\\ud800"',
        '{"\\udfff": 1}',
        b"\xff\xfe\xfd",
    ],
)
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(NotJsonError):
        decode(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'"a\x8b"', "the byte at offset 2 is not UTF-8"),
        ("9" * 5_000, "a number has too many digits"),
        ("NaN", "NaN is not a JSON number"),
    ],
)
def test_error_names_fault_of_json_text(data: str | bytes, reason: str) -> None:
    with pytest.raises(NotJsonError) as refused:
        decode(data)

    assert str(refused.value) == reason


def test_escapes_of_whole_characters_are_read() -> None:
    assert decode(json.dumps("😀한")) == "😀한"
