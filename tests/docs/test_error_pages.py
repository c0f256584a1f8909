"""docs/errors/ has one page for each code in the sources, and the example on it is true to form."""

import ast
import json
import re
from functools import cache

import pytest

from goondan_tasks import errors
from goondan_tasks.errors import GoondanError
from tests.architecture.sources import python_sources
from tests.docs.pages import ROOT, Page, page

_CODE = re.compile(r"E_[A-Z]+(_[A-Z]+)*")

PAGES = {file.stem: page(f"docs/errors/{file.name}") for file in (ROOT / "docs/errors").glob("E_*.md")}

every_page = pytest.mark.parametrize("code", sorted(PAGES))


@cache
def codes_in_the_sources() -> frozenset[str]:
    """Return the error codes that stand as whole strings in the sources."""
    constants = (
        node.value
        for source in python_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant)
    )
    return frozenset(value for value in constants if isinstance(value, str) and _CODE.fullmatch(value))


def default_suggestions() -> dict[str, str]:
    """Return the suggestion of each class of the error tree, by its code."""
    classes = [vars(errors)[name] for name in errors.__all__]
    return {
        error.code: error.suggestion
        for error in classes
        if issubclass(error, GoondanError) and error.suggestion is not None
    }


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    # E_GOONDAN is the base class's own: nothing raises it
    assert set(PAGES) == codes_in_the_sources() - {"E_GOONDAN"}


def test_the_index_lists_every_page() -> None:
    assert {f"{code}.md" for code in PAGES} <= set(page("docs/errors/README.md").links())


@every_page
def test_a_page_says_what_why_and_what_to_do(code: str) -> None:
    lines = PAGES[code].text.splitlines()

    assert lines[0] == f"# {code}"
    assert [line for line in lines if line.startswith("## ")] == ["## Why", "## What to do", "## Example"]


@every_page
def test_the_example_carries_the_code_and_the_suggestion_of_the_sources(code: str) -> None:
    example = _example(PAGES[code])
    error = example.get("error", example)

    assert error["code"] == code
    assert error["message"]
    if code in default_suggestions() and "level" not in error:
        assert error["suggestion"] == default_suggestions()[code]


def _example(markdown: Page) -> dict[str, dict[str, str]]:
    [block] = [block for block in markdown.blocks() if block.language == "json"]
    example: dict[str, dict[str, str]] = json.loads(block.text)
    return example
