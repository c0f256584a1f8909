"""The types of the TypeScript client are those of the OpenAPI document."""

from tests.docs.typescript_types import FILE, written


def test_types_are_made_from_document_of_today() -> None:
    assert FILE.read_text("utf-8") == written(), "run python -m tests.docs.typescript_types"
