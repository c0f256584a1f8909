"""Parameters in any draft of JSON Schema."""

from typing import Any

import pytest

from workers.mcp.schemas import checkable

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def test_a_schema_that_can_be_checked_passes_unchanged() -> None:
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
def test_an_older_draft_is_written_as_the_current_one(old: Any, current: Any) -> None:
    assert checkable(of(old)) == of(current)


@pytest.mark.parametrize(
    "schema",
    [of({"type": 7}), of({"$ref": "https://example.com/x"}), of({"pattern": "["}), {"properties": []}],
)
def test_one_without_a_meaning_takes_any_object(schema: Any) -> None:
    assert checkable(schema) == {"type": "object"}
