"""docs/reference/commands.md lists every command with its options, and pages write commands that exist."""

import re
import shlex

import pytest

from goondan_tasks.cli.program import COMMANDS, GROUPS
from tests.command_line import EVERYWHERE, SETTINGS, arguments, fault_of, options
from tests.docs.pages import ROOT, Page, every_page, page

REFERENCE = page("docs/reference/commands.md")

_INLINE = re.compile(r"`goondan ([^`\n]+)`")
_PROMPT = re.compile(r"^\$ (?:[A-Z_]+=\S+ )*goondan (.+?)(?: &| \||$)", re.MULTILINE)


def command_lines(markdown: Page) -> list[str]:
    """Return the words after ``goondan`` wherever a page shows a command."""
    blocks = [block.text.replace("\\\n", " ") for block in markdown.blocks() if block.language == "console"]
    return _INLINE.findall(markdown.prose()) + [line for text in blocks for line in _PROMPT.findall(text)]


@pytest.mark.parametrize("name", COMMANDS)
def test_page_lists_arguments_and_options_of_command(name: str) -> None:
    listed = [re.split(r"[ `]", cell)[0] for cell in REFERENCE.section(f"goondan {name}").first_cells()]
    expected = {option for option in options(name) - EVERYWHERE - SETTINGS if option.startswith("--")}
    expected |= {re.sub(r"\W", "", argument.split()[-1]) for argument in arguments(name)}

    assert set(listed) - {"settings"} == expected
    assert ("settings" in listed) == (options(name) >= SETTINGS)


def test_page_lists_no_other_command() -> None:
    headings = re.findall(r"^##(#?) goondan (.+)$", REFERENCE.text, re.MULTILINE)

    assert sorted(name for _, name in headings) == sorted([*COMMANDS, *GROUPS])
    assert [name for level, name in headings if level] == [name for name in COMMANDS if " " in name]


@pytest.mark.parametrize("markdown", every_page(), ids=lambda markdown: markdown.name)
def test_commands_on_page_exist(markdown: Page) -> None:
    faults = [fault for line in command_lines(markdown) if (fault := fault_of(shlex.split(line)))]

    assert faults == []


def test_command_that_does_not_exist_is_seen() -> None:
    text = (
        "Run `goondan cal coder`.\n\n```console\n$ A=b goondan call coder \\\n  bash__exec --wait 3 &\n```\n"
    )

    faults = [fault_of(shlex.split(line)) for line in command_lines(Page(ROOT / "page.md", text))]

    assert faults == ["there is no command 'cal'", "call has no option '--wait'"]


def test_nonexistent_command_of_group_is_found() -> None:
    assert fault_of(["oauth", "grant"]) == "there is no command 'oauth grant'"
    assert fault_of(["oauth", "grants", "--port", "3"]) == "oauth grants has no option '--port'"
