"""goondan explain, and where errors lead to."""

import tomllib
from pathlib import Path

import pytest

from goondan_tasks.cli.output import error_text
from goondan_tasks.contract import failure
from tests.unit.goondan_tasks.cli.invoke import goondan

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("code", ["E_TOOL_TIMEOUT", "e_tool_timeout", "git_error"])
def test_page_is_printed(code: str) -> None:
    shown = goondan("explain", code)

    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"# {code.upper()}\n")
    assert "\n## What to do\n" in shown.stdout
    assert "](" not in shown.stdout


def test_json_output_has_unchanged_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_HELP_URL", "https://help.example.com/")

    document = goondan("explain", "E_LIMIT", "--json").document

    assert document["page"] == (ROOT / "docs/errors/E_LIMIT.md").read_text(encoding="utf-8")
    assert (document["code"], document["helpUrl"]) == ("E_LIMIT", "https://help.example.com/E_LIMIT")


def test_explain_without_code_lists_all_codes() -> None:
    listed = goondan("explain", "--json").document

    assert {"code": "E_TOOL_TIMEOUT", "summary": "The tool reached its time limit."} in listed
    assert [one["code"] for one in listed] == sorted(failure.error_pages())
    assert all(one["summary"].endswith(".") and "](" not in one["summary"] for one in listed)
    assert goondan("explain").stdout.count("\n") == len(listed) + 1


@pytest.mark.parametrize(
    ("code", "guess"),
    [
        ("E_TOOL_TIMOUT", "Did you mean E_TOOL_TIMEOUT?"),
        ("tool_timeout", "Did you mean E_TOOL_TIMEOUT?"),
        ("README", "lists all codes"),
        ("../../README", "lists all codes"),
        ("\x1b[2J", "lists all codes"),
        ("", "lists all codes"),
    ],
)
def test_unknown_error_code_suggests_intended_code(code: str, guess: str) -> None:
    refused = goondan("explain", code)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert guess in refused.stderr
    assert "\x1b" not in refused.stderr


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("https://docs.goondan.ai/errors/E_LIMIT", "goondan explain E_LIMIT, or https://docs"),
        ("https://help.example.com/?code=GIT_ERROR", "goondan explain GIT_ERROR, or https://help"),
        ("https://tools.example.com/E_PRINTER_ON_FIRE", "https://tools.example.com/E_PRINTER_ON_FIRE"),
        ("https://tools.example.com/fire", "https://tools.example.com/fire"),
    ],
)
def test_error_names_page_that_is_here(url: str, more: str) -> None:
    last = error_text("Error", "It failed.", None, url).plain.splitlines()[-1]

    assert last.startswith(f"More: {more}")


def test_package_and_image_hold_pages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    sent = (ROOT / ".dockerignore").read_text("utf-8").splitlines()

    assert included["docs/errors"] == "goondan_tasks/docs/errors"
    assert "!docs/errors" in sent


def test_pages_of_installed_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages/goondan_tasks"
    (package / "docs/errors").mkdir(parents=True)
    (package / "docs/errors/E_ONE.md").touch()
    (package.parent / "docs/errors").mkdir(parents=True)
    (package.parent / "docs/errors/of-another-package.md").touch()
    monkeypatch.setattr(failure, "__file__", str(package / "contract/failure.py"))

    assert failure.error_pages() == {"E_ONE": package / "docs/errors/E_ONE.md"}
