"""Every page: its links lead somewhere, and its code can be read."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, CodeBlock, Page, every_page, page

every_one = pytest.mark.parametrize("markdown", every_page(), ids=lambda markdown: markdown.name)

MANIFEST = "tests/requirements/manifest.yaml"
#: a file by its path from the root
_FILE = re.compile(
    r"(?<![\w./~-])(?:benchmarks|broker_config|clients|docs|examples|goondan_tasks|tests|workers)/[\w./-]*\.[a-z]+\b"
)
#: what recipes have their readers fill in
PLACEHOLDERS = {"CODE.md", "NAME.lua"}

LANGUAGES = {"console", "dockerfile", "json", "python", "text", "typescript", "yaml"}


@every_one
def test_links_lead_to_files_and_headings_that_exist(markdown: Page) -> None:
    broken = [target for target in markdown.links() if not _exists(markdown, target)]

    assert broken == []


@pytest.mark.parametrize("name", [*(markdown.name for markdown in every_page()), MANIFEST])
def test_files_of_project_that_text_names_exist(name: str) -> None:
    assert _missing_files((ROOT / name).read_text(encoding="utf-8")) == []


def test_file_that_does_not_exist_is_seen() -> None:
    text = "See docs/README.md, docs/no-such-page.md and `/srv/tools/docs/far.md`; copy docs/errors/CODE.md."

    assert _missing_files(text) == ["docs/no-such-page.md"]


@every_one
def test_code_blocks_are_valid_in_their_language(markdown: Page) -> None:
    faults = [f"line {block.line}: {fault}" for block in markdown.blocks() if (fault := _fault_of(block))]

    assert faults == []


def test_pages_under_docs_are_reached_from_index() -> None:
    reached, waiting = set(), [page("docs/README.md")]
    while waiting:
        markdown = waiting.pop()
        reached.add(markdown.name)
        waiting += [found for found in _linked_pages(markdown) if found.name not in reached]

    assert {markdown.name for markdown in every_page() if markdown.name.startswith("docs/")} <= reached


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\ndef f(:\n```\n", "invalid syntax"),
        ("```json\n{'a': 1}\n```\n", "property name"),
        ("```yaml\na: [1\n```\n", "expected"),
        ("```cobol\nSTOP RUN.\n```\n", "cobol is not a language of these pages"),
    ],
)
def test_broken_code_block_is_seen(text: str, fault: str) -> None:
    [block] = Page(ROOT / "broken.md", text).blocks()

    assert fault in (_fault_of(block) or "")


@pytest.mark.parametrize("target", ["nowhere.md", "README.md#no-such-heading", "/etc/passwd"])
def test_broken_link_is_seen(target: str) -> None:
    assert not _exists(Page(ROOT / "page.md", "# Title\n"), target)


def test_block_that_is_never_closed_is_seen() -> None:
    with pytest.raises(ValueError, match="never closed"):
        list(Page(ROOT / "broken.md", "```python\npass\n").blocks())


def _missing_files(text: str) -> list[str]:
    named = (name for name in _FILE.findall(text) if Path(name).name not in PLACEHOLDERS)
    return [name for name in named if not (ROOT / name).exists()]


def _exists(markdown: Page, target: str) -> bool:
    if target.startswith(("https://", "http://127.0.0.1")):
        return True
    name, _, anchor = target.partition("#")
    file = (markdown.path.parent / name).resolve() if name else markdown.path
    if not file.is_relative_to(ROOT) or not (file.exists() or file == markdown.path):
        return False
    return not anchor or anchor in (markdown if not name else page(_name(file))).anchors()


def _linked_pages(markdown: Page) -> list[Page]:
    names = {target.partition("#")[0] for target in markdown.links() if "://" not in target}
    files = {(markdown.path.parent / name).resolve() for name in names if name.endswith(".md")}
    return [page(_name(file)) for file in files]


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _fault_of(block: CodeBlock) -> str | None:
    if block.language not in LANGUAGES:
        return f"{block.language or 'an unnamed one'} is not a language of these pages"
    try:
        if block.language == "python":
            compile(block.text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return str(error)
    return None
