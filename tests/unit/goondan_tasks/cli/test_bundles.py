"""goondan validate."""

import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.contract.messages import epoch_milliseconds
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.wheels import make_wheel

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


def test_valid_bundle_ends_with_zero() -> None:
    checked = goondan("validate", str(EXAMPLE))

    assert (checked.exit_code, checked.stdout) == (0, "")
    assert checked.stderr == f"{EXAMPLE}: no findings\nworkspace: coding-swarm\n"


def test_every_finding_shows_place_code_and_suggestion() -> None:
    _, findings = inspect_bundle(FAULTY)

    checked = goondan("validate", str(FAULTY))

    assert checked.exit_code == 3
    assert len(findings) >= 30
    for finding in findings:
        assert f"{finding.file}:{finding.line}: {finding.level} {finding.code} " in checked.stdout
        assert f"\n    {finding.suggestion}\n" in checked.stdout


@pytest.mark.parametrize("option", [("--format", "json"), ("--json",)])
def test_json_document_is_exactly_valid_and_findings(option: tuple[str, ...]) -> None:
    checked = goondan("validate", str(FAULTY), *option)

    assert checked.exit_code == 3
    assert set(checked.document) == {"valid", "findings"}
    assert checked.document["valid"] is False
    assert all(set(finding) == FIELDS for finding in checked.document["findings"])


def test_valid_bundle_is_reported_valid() -> None:
    assert goondan("validate", str(EXAMPLE), "--json").document == {"valid": True, "findings": []}


def test_github_gets_annotations(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text("apiVersion: goondan.ai/v1\nkind: Aget\n", encoding="utf-8")

    checked = goondan("validate", str(tmp_path), "--format", "github")

    [first, *_] = checked.stdout.splitlines()
    assert checked.exit_code == 3
    assert first.startswith(f"::error file={tmp_path / 'goondan.yaml'},line=2,title=E_CONFIG_UNKNOWN_KIND::")


def test_separators_in_annotation_path_are_escaped(tmp_path: Path) -> None:
    directory = tmp_path / "a,b:c%"
    directory.mkdir()
    (directory / "goondan.yaml").write_text("kind: [", encoding="utf-8")

    checked = goondan("validate", str(directory), "--format", "github")

    assert "a%2Cb%3Ac%25/goondan.yaml,line=" in checked.stdout
    assert all(line.startswith("::error ") for line in checked.stdout.splitlines())


def test_warning_fails_only_when_it_is_to(doubtful: Path) -> None:
    assert goondan("validate", str(doubtful)).exit_code == 0
    assert goondan("validate", str(doubtful), "--strict").exit_code == 3
    assert goondan("validate", str(doubtful), "--strict", "--json").document["valid"] is False


def test_without_argument_bundle_that_is_set_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_BUNDLE", str(FAULTY))

    assert goondan("validate").exit_code == 3


def test_directory_that_is_not_bundle_is_not_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = goondan("validate")

    assert ended.exit_code == 3
    assert "there is no goondan.yaml here" in ended.stderr


def test_without_setting_this_directory_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)

    assert goondan("validate").stderr == ".: no findings\nworkspace: coding-swarm\n"


@pytest.mark.parametrize("path", ["/no/such/place", "/dev/null", "/dev/zero"])
def test_path_without_bundle_is_finding(path: str) -> None:
    checked = goondan("validate", path, "--json")

    assert checked.exit_code == 3
    assert [finding["file"] for finding in checked.document["findings"]] == [path]


@pytest.fixture
def needy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a bundle that requires a package; pip finds it in a folder, and installs it into another one."""
    shelf, target = tmp_path / "shelf", tmp_path / "target"
    shelf.mkdir()
    target.mkdir()
    make_wheel(shelf, "needed_thing", "1.0", text="WORD = 'here'\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(shelf), "TARGET": str(target)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.syspath_prepend(str(target))
    folder = tmp_path / "bundle"
    goondan("init", str(folder))
    tool = folder / "tools" / "text.py"
    tool.write_text("import needed_thing\n" + tool.read_text("utf-8"), encoding="utf-8")
    _require(folder, "'needed-thing>=1'")
    return folder


def _require(bundle: Path, items: str) -> None:
    """Let the Package that ``goondan init`` has written require these."""
    file = bundle / "goondan.yaml"
    text = re.sub(r"\nspec: { requirements: .* }", "", file.read_text("utf-8"))
    named = re.sub(r"(\nkind: Package\n.*)", rf"\1\nspec: {{ requirements: [{items}] }}", text, count=1)
    file.write_text(named, "utf-8")


def test_missing_requirements_are_installed_once_showing_pip(needy: Path) -> None:
    before = goondan("validate", str(needy), "--json")
    during = goondan("validate", str(needy), "--install", "--json")
    again = goondan("validate", str(needy), "--install")

    assert {one["path"] for one in before.document["findings"]} == {"spec.requirements[0]", "spec.entry"}
    assert (during.exit_code, during.document["findings"]) == (0, [])
    assert f"Installing needed-thing>=1 into {sys.prefix}" in during.stderr
    assert "Successfully installed needed" in during.stderr
    assert (again.exit_code, f"{needy}: every requirement is met" in again.stderr) == (0, True)


def test_failed_installation_is_error_with_pips_output(needy: Path) -> None:
    _require(needy, "'needed-thing>=7'")

    refused = goondan("validate", str(needy), "--install", "--json")

    assert refused.exit_code == 3
    assert refused.document["error"]["code"] == "E_CONFIG_PACKAGE_NOT_INSTALLED"
    assert (
        refused.document["error"]["message"]
        == "pip could not install needed-thing>=7: it exited with status 1."
    )
    assert "No matching distribution found" in refused.stderr


def test_installation_without_pip_suggests_ensurepip(needy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)

    refused = goondan("validate", str(needy), "--install", "--json")

    assert refused.exit_code == 3
    assert refused.document["error"]["message"].startswith("There is no pip in ")
    assert refused.document["error"]["suggestion"].endswith(f"{sys.executable} -m ensurepip")


def test_new_bundle_has_no_requirements(tmp_path: Path) -> None:
    made = goondan("init", str(tmp_path), "--install")

    assert (made.exit_code, f"{tmp_path}: no requirements" in made.stderr) == (0, True)


def test_models_view_of_auto_exports_is_shown(tmp_path: Path) -> None:
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
    assert shown[:2] == [f"text__count({arguments})  Counts.", f"{tmp_path}: no findings"]
    assert (export["name"], export["description"]) == ("text__count", "Counts.\n\nIn units.")
    assert export["parameters"]["required"] == ["text", "unit"]


def test_next_slots_of_schedules_are_shown() -> None:
    path = str(ROOT / "examples" / "morning-report")

    shown, document = goondan("validate", "--strict", path), goondan("validate", path, "--json").document

    assert shown.exit_code == 0
    assert re.search(
        r"^Schedule/clean-up: next due( [-\d]{10} [:\d]{8} [-+A-Z\d]+,?){3}$", shown.stderr, re.M
    )
    slots = [epoch_milliseconds(slot) for slot in document["schedules"]["clean-up"]]
    assert [after - before for before, after in pairwise(slots)] == [900_000, 900_000]
