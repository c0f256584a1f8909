"""Where an entry file must stand."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Finding
from tests.unit.goondan_tasks.bundle.writing import HANDLERS, TOOL, found_in, write


def entry_findings(tmp_path: Path, entry: str) -> list[Finding]:
    bundle = write(tmp_path / "bundle", {"goondan.yaml": TOOL.replace("./echo.py", entry)})
    return found_in(bundle)


@pytest.mark.parametrize("entry", ["./echo.py", "echo.py", "././echo.py"])
def test_entry_starts_from_bundle_root(tmp_path: Path, entry: str) -> None:
    assert entry_findings(tmp_path, entry) == []


@pytest.mark.requirement("bundle.tool.entry-exists")
@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("./missing.py", "cannot be found"),
        ("./echo.py/x.py", "cannot be found"),
        ("'./a\\0.py'", "cannot be found"),
        ('"./a\\0.py"', "not a relative path"),
        ("'x" + "y" * 5_000 + ".py'", "cannot be found"),
        ("/etc/passwd", "not a relative path"),
        ("C:\\echo.py", "not a relative path"),
        ("../echo.py", "leads out of the bundle"),
        ("./a/../../echo.py", "leads out of the bundle"),
        (".", "is not a file"),
    ],
)
def test_entry_without_file_in_bundle_is_refused(tmp_path: Path, entry: str, part: str) -> None:
    write(tmp_path, {})

    (finding,) = entry_findings(tmp_path, entry)

    assert (finding.code, finding.path, finding.line) == ("E_CONFIG_ENTRY_NOT_FOUND", "spec.entry", 5)
    assert part in finding.message


def test_link_out_of_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "outside.py").write_text(HANDLERS)
    (tmp_path / "bundle" / "link.py").symlink_to(tmp_path / "outside.py")
    (tmp_path / "bundle" / "circle.py").symlink_to("circle.py")

    (outside,) = entry_findings(tmp_path, "./link.py")
    (circle,) = entry_findings(tmp_path, "./circle.py")

    assert "a link that leads out of the bundle" in outside.message
    assert "cannot be found" in circle.message


def test_link_inside_bundle_is_followed(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "link.py").symlink_to("echo.py")

    assert entry_findings(tmp_path, "./link.py") == []


def test_bundle_may_itself_be_reached_through_link(tmp_path: Path) -> None:
    write(tmp_path / "real", {"goondan.yaml": TOOL})
    (tmp_path / "link").symlink_to("real")

    assert found_in(tmp_path / "link") == []


@pytest.mark.parametrize(
    ("entry", "language"),
    [("./index.tsx", "TypeScript with JSX"), ("./index.GO", "Go"), ("./run.sh", "shell")],
)
def test_another_language_is_named(tmp_path: Path, entry: str, language: str) -> None:
    (finding,) = entry_findings(tmp_path, entry)

    assert finding.code == "E_CONFIG_SCHEMA_INVALID"
    assert language in finding.message
    assert "entries are Python, TypeScript or JavaScript" in finding.message


def test_file_of_any_other_kind_is_not_entry(tmp_path: Path) -> None:
    write(tmp_path / "bundle", {"echo.txt": "text"})

    (finding,) = entry_findings(tmp_path, "./echo.txt")

    assert "not code that can be run" in finding.message


def test_entries_of_agents_and_extensions_obey_same_rules(tmp_path: Path) -> None:
    extension = TOOL.replace("Tool", "Extension").replace("./echo.py", "../x.py").partition("  exports")[0]
    agent = "apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: a }\nspec: { entry: ./missing.py }\n"

    findings = found_in(write(tmp_path, {"goondan.yaml": f"{extension}---\n{agent}"}))

    assert [(finding.resource, finding.path) for finding in findings] == [
        ("Extension/echo", "spec.entry"),
        ("Agent/a", "spec.entry"),
    ]


@pytest.mark.parametrize("entry", ["agent.ts", "agent.mjs"])
def test_entry_of_agent_is_python(tmp_path: Path, entry: str) -> None:
    agent = f"apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: {{ name: a }}\nspec: {{ entry: {entry} }}\n"
    files = {"goondan.yaml": agent, entry: "export const handle = () => 1;"}

    (finding,) = found_in(write(tmp_path, files))

    assert "entries of Agents are Python" in finding.message
    assert finding.path == "spec.entry"
