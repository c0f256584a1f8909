"""An MCP server's tools: their names, their schemas, and what their results become."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult

from goondan_tasks.contract.names import parse_tool_name
from goondan_tasks.contract.schema import SchemaTooLargeError
from workers.mcp.tools import checkable, error_text, full_names, output_of


def test_name_that_is_allowed_stays() -> None:
    assert full_names("time", ["get_current_time", "convert-time", "X1"]) == {
        "time__get_current_time": "get_current_time",
        "time__convert-time": "convert-time",
        "time__X1": "X1",
    }


def test_name_that_is_forbidden_stays_readable() -> None:
    names = list(full_names("s", ["files.read", "files/read", "a__b", "날씨", ""]))

    assert names == [
        "s__files_read-601e4eb6",
        "s__files_read-2b733164",
        "s__a_b-63e5c1c4",
        "s__fe655cf1",
        "s__e3b0c442",
    ]


def test_name_that_another_tool_has_gets_longer_digest() -> None:
    [taken] = full_names("s", ["a.b"])

    names = full_names("s", ["a.b", taken.removeprefix("s__")])

    assert names[taken] == taken.removeprefix("s__")
    assert sorted(names.values()) == sorted(["a.b", taken.removeprefix("s__")])


def test_name_with_fully_taken_digest_is_lengthened() -> None:
    digest = hashlib.sha256(b"a.b").hexdigest()
    taken = [f"a_b-{digest[:length]}" for length in range(8, 65)]

    names = full_names("s", ["a.b", *taken])

    assert names == {f"s__a_b-{digest}0": "a.b", **{f"s__{name}": name for name in taken}}


@given(st.lists(st.text(max_size=20), unique=True))
def test_every_name_is_allowed_and_leads_back(tools: list[str]) -> None:
    names = full_names("server-1", tools)

    assert list(names.values()) == tools
    for name in names:
        parts = parse_tool_name(name)
        assert parts
        assert parts.resource == "server-1"


TEXT = {"type": "text", "text": "12°"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"content": []}, ""),
        ({"content": [TEXT]}, "12°"),
        ({"content": [TEXT, TEXT]}, "12°\n12°"),
        ({"content": [TEXT, IMAGE]}, {"content": [TEXT, IMAGE]}),
        ({"content": [TEXT], "structuredContent": {"degrees": 12}}, {"degrees": 12}),
        ({"content": [], "structuredContent": {}}, {}),
        (
            {"content": [IMAGE], "structuredContent": {"width": 1}, "_meta": {"x": 1}},
            {"content": [IMAGE], "structuredContent": {"width": 1}},
        ),
    ],
)
def test_output_is_structure_else_text_else_all_content(answer: dict[str, Any], output: Any) -> None:
    assert output_of(CallToolResult.model_validate(answer)) == output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([TEXT, TEXT], "12°\n12°"),
        ([], "The tool failed without saying why."),
        ([IMAGE], "The tool failed without saying why."),
    ],
)
def test_error_is_its_text(content: list[Any], message: str) -> None:
    assert error_text(CallToolResult.model_validate({"content": content, "isError": True})) == message


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def test_schema_that_can_be_checked_passes_unchanged() -> None:
    schema = {"$schema": DRAFT_7, **of({"$ref": "#/definitions/n"}), "definitions": {"n": {"x-hint": [1]}}}

    assert checkable(schema) is schema


@pytest.mark.parametrize(
    ("old", "current"),
    [
        (
            {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        ),
        ({"items": [True]}, {"prefixItems": [True]}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"items": [{"default": {"items": [1]}}]}, {"prefixItems": [{"default": {"items": [1]}}]}),
    ],
)
def test_schema_of_older_draft_becomes_current_draft(old: Any, current: Any) -> None:
    assert checkable(of(old)) == of(current)


@pytest.mark.parametrize(
    "schema",
    [of({"type": 7}), of({"$ref": "https://example.com/x"}), of({"pattern": "["}), {"properties": []}],
)
def test_meaningless_schema_accepts_any_object(schema: Any) -> None:
    assert checkable(schema) == {"type": "object"}


def test_schema_too_slow_to_check_is_refused() -> None:
    with pytest.raises(SchemaTooLargeError, match="checks one value up to"):
        checkable(of({"enum": [[number] for number in range(12_000)]}))
