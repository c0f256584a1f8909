"""goondan validate."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from tests.unit.goondan_tasks.cli.invoke import goondan

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "coding-swarm"
FAULTY = ROOT / "tests" / "bundles" / "thirty-faults"

FIELDS = {"level", "code", "message", "file", "line", "path", "resource", "suggestion"}

DOUBTFUL = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata:
  name: alone
spec:
  tools: []
---
apiVersion: goondan.ai/v1
kind: Agent
metadata:
  name: member
spec:
  tools: []
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata:
  name: default
spec:
  entryAgent: Agent/member
  agents:
    - Agent/member
"""


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    """Write a bundle with a warning: an Agent in no Swarm."""
    (tmp_path / "goondan.yaml").write_text(DOUBTFUL, encoding="utf-8")
    return tmp_path


def test_a_valid_bundle_ends_with_zero() -> None:
    checked = goondan("validate", str(EXAMPLE))

    assert (checked.exit_code, checked.stdout) == (0, "")
    assert checked.stderr == f"{EXAMPLE}: no findings\n"


def test_every_finding_is_shown_with_place_code_and_suggestion() -> None:
    _, findings = inspect_bundle(FAULTY)

    checked = goondan("validate", str(FAULTY))

    assert checked.exit_code == 3
    assert len(findings) >= 30
    for finding in findings:
        assert f"{finding.file}:{finding.line}: {finding.level} {finding.code} " in checked.stdout
        assert f"\n    {finding.suggestion}\n" in checked.stdout


@pytest.mark.parametrize("option", [("--format", "json"), ("--json",)])
def test_the_json_document_is_exactly_valid_and_findings(option: tuple[str, ...]) -> None:
    checked = goondan("validate", str(FAULTY), *option)

    assert checked.exit_code == 3
    assert set(checked.document) == {"valid", "findings"}
    assert checked.document["valid"] is False
    assert all(set(finding) == FIELDS for finding in checked.document["findings"])


def test_a_valid_bundle_is_said_to_be_valid() -> None:
    assert goondan("validate", str(EXAMPLE), "--json").document == {"valid": True, "findings": []}


def test_github_gets_annotations(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text("apiVersion: goondan.ai/v1\nkind: Aget\n", encoding="utf-8")

    checked = goondan("validate", str(tmp_path), "--format", "github")

    [first, *_] = checked.stdout.splitlines()
    assert checked.exit_code == 3
    assert first.startswith(f"::error file={tmp_path / 'goondan.yaml'},line=2,title=E_CONFIG_UNKNOWN_KIND::")


def test_what_would_end_an_annotation_early_is_escaped(tmp_path: Path) -> None:
    directory = tmp_path / "a,b:c%"
    directory.mkdir()
    (directory / "goondan.yaml").write_text("kind: [", encoding="utf-8")

    checked = goondan("validate", str(directory), "--format", "github")

    assert "a%2Cb%3Ac%25/goondan.yaml,line=" in checked.stdout
    assert all(line.startswith("::error ") for line in checked.stdout.splitlines())


def test_a_warning_fails_only_when_it_is_to(doubtful: Path) -> None:
    assert goondan("validate", str(doubtful)).exit_code == 0
    assert goondan("validate", str(doubtful), "--strict").exit_code == 3
    assert goondan("validate", str(doubtful), "--strict", "--json").document["valid"] is False


def test_without_an_argument_the_bundle_that_is_set_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_BUNDLE", str(FAULTY))

    assert goondan("validate").exit_code == 3


def test_a_directory_that_is_not_a_bundle_is_not_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = goondan("validate")

    assert ended.exit_code == 3
    assert "there is no goondan.yaml here" in ended.stderr


def test_without_a_setting_this_directory_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)

    assert goondan("validate").stderr == ".: no findings\n"


@pytest.mark.parametrize("path", ["/no/such/place", "/dev/null", "/dev/zero"])
def test_what_is_not_a_bundle_is_a_finding(path: str) -> None:
    checked = goondan("validate", path, "--json")

    assert checked.exit_code == 3
    assert [finding["file"] for finding in checked.document["findings"]] == [path]


def test_the_new_bundle_is_valid_and_the_next_commands_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "a new place"
    made = goondan("init", str(folder))

    assert made.exit_code == 0
    assert f"goondan dev '{folder}'" in made.stderr
    checked = goondan("validate", "--strict", str(folder), "--json").document
    assert (checked["valid"], checked["findings"]) == (True, [])


def test_what_a_model_will_see_of_auto_exports_is_shown(tmp_path: Path) -> None:
    text = '''\
from enum import Enum
from typing import Any, Literal
from goondan_tasks.tool_api import tool

class Unit(Enum):
    WORD = "word"

@tool
def count(text: str, unit: Unit, most: int | None = None, by: Literal["a", "b"] = "a", rest: list[Any] = []):
    """Counts.

    In units.
    """
'''
    goondan("init", str(tmp_path))
    (tmp_path / "tools/text.py").write_text(text, encoding="utf-8")

    shown = goondan("validate", str(tmp_path)).stderr.splitlines()
    [export] = goondan("validate", str(tmp_path), "--json").document["autoExports"]

    arguments = 'text: string, unit: Unit, most?: integer | null, by?: "a" | "b", rest?: array'
    assert shown == [f"text__count({arguments})  Counts.", f"{tmp_path}: no findings"]
    assert (export["name"], export["description"]) == ("text__count", "Counts.\n\nIn units.")
    assert export["parameters"]["required"] == ["text", "unit"]


def test_programs_get_the_files_and_the_next_commands(tmp_path: Path) -> None:
    document = goondan("init", str(tmp_path), "--json").document

    assert document["files"] == [str(tmp_path / "goondan.yaml"), str(tmp_path / "tools" / "text.py")]
    assert document["next"][0] == f"goondan validate {tmp_path}"


def test_without_a_directory_it_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert goondan("init").exit_code == 0
    assert goondan("validate", "--json").document["valid"]


@pytest.mark.parametrize("name", ["goondan.yaml", "tools/text.py"])
def test_a_file_that_is_there_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine", encoding="utf-8")

    refused = goondan("init", str(tmp_path))

    assert refused.exit_code == 2
    assert [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*") if file.is_file()] == ["mine"]


def test_a_place_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused = goondan("init", str(tmp_path / "file" / "bundle"), "--json")

    assert refused.exit_code == 3
    assert refused.document["error"]["code"].startswith("E_CONFIG")
