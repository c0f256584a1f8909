"""docs/errors/ has one page for each code in the sources, and the example on it is true to form."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetCode
from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.contract import errors
from goondan_tasks.contract.errors import GoondanError
from goondan_web import answers
from tests.architecture.sources import python_sources
from tests.docs.pages import ROOT, Page, page

_CODE = re.compile(r"E_[A-Z]+(_[A-Z]+)*")

#: in the documents' own spelling
CHANGESET_CODES = frozenset(get_args(ChangesetCode))

# the base class's own, which nothing raises; and two of the command line, which points to no page for them
WITHOUT_PAGE = {"E_GOONDAN", "E_USAGE"}
PAGES = {
    file.stem: page(f"docs/errors/{file.name}")
    for file in (ROOT / "docs/errors").glob("*.md")
    if file.name != "README.md"
}

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


def codes_of_errors() -> set[str]:
    """Return the codes, in whatever spelling, that classes have and that errors are made with."""
    nodes = [node for source in python_sources() for node in ast.walk(source.tree)]
    lines = [line for node in nodes if isinstance(node, ast.ClassDef) for line in node.body]
    values = [
        *(node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "code"),
        *(
            line.value
            for line in lines
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code"
        ),
    ]
    return {
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def default_suggestions() -> dict[str, str]:
    """Return the suggestion of each class of the error tree, by its code."""
    return {
        error.code: error.suggestion
        for error in (*vars(errors).values(), *vars(answers).values())
        if isinstance(error, type) and issubclass(error, GoondanError) and error.suggestion is not None
    }


def test_every_code_has_page_and_every_page_code() -> None:
    assert set(PAGES) == codes_in_the_sources() - WITHOUT_PAGE | CHANGESET_CODES


def test_every_error_code_is_explained_in_documentation() -> None:
    explained = {*PAGES, *WITHOUT_PAGE, *re.findall(r"`(\w+)`", page("docs/reference/oauth.md").text)}

    assert codes_of_errors() - explained == set()


def test_index_lists_every_page() -> None:
    assert {f"{code}.md" for code in PAGES} <= set(page("docs/errors/README.md").links())


@every_page
def test_page_has_why_what_to_do_and_example(code: str) -> None:
    lines = PAGES[code].text.splitlines()

    assert lines[0] == f"# {code}"
    assert [line for line in lines if line.startswith("## ")] == ["## Why", "## What to do", "## Example"]


@every_page
def test_example_carries_code_and_suggestion_of_sources(code: str) -> None:
    example = _example(PAGES[code])
    error = example.get("error", example)

    assert error["code"] == code
    assert error["message"]
    if code in default_suggestions() and "level" not in error:
        assert error["suggestion"] == default_suggestions()[code]


@pytest.mark.parametrize("code", [code for code in sorted(PAGES) if len(list(PAGES[code].blocks())) == 2])
def test_error_page_finding_matches_validation_of_file(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, finding = PAGES[code].blocks()
    bundle = tmp_path / "notes"
    (bundle / "tools").mkdir(parents=True)
    (bundle / "tools/notes.py").write_text('handlers = {"add": print}\n', encoding="utf-8")
    (bundle / "resources.yaml").write_text(faulty.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    _, findings = inspect_bundle(Path("notes"))

    found = [json.dumps(found.to_wire()).replace(str(bundle), "/srv/notes") for found in findings]
    assert json.loads(finding.text) in map(json.loads, found)


def _example(markdown: Page) -> dict[str, dict[str, str]]:
    [block] = [block for block in markdown.blocks() if block.language == "json"]
    example: dict[str, dict[str, str]] = json.loads(block.text)
    return example
