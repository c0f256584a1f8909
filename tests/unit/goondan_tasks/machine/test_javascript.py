"""What runs TypeScript, and what a check finds in such files; Node and Bun are real."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Finding
from goondan_tasks.cli.doctor import javascript_check
from goondan_tasks.machine.javascript import find_runtime, source_name
from tests.javascript_runtimes import NAMES, runtime
from tests.unit.goondan_tasks.bundle.writing import TOOL, found_in, write

RIGHT = "export const handlers = { run: (_ctx: unknown) => 1 };\n"


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found = runtime(request.param)
    monkeypatch.setenv("GOONDAN_JAVASCRIPT", found.program)
    return found.name


def findings(folder: Path, text: str) -> list[Finding]:
    files = {"goondan.yaml": TOOL.replace("echo.py", "echo.ts"), "echo.ts": text}
    return found_in(write(folder, files), import_entries=True)


def program(place: Path, version: str) -> str:
    """Write a program that says a version."""
    place.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    place.chmod(0o755)
    return str(place)


def test_file_with_handlers_is_right(name: str, tmp_path: Path) -> None:
    assert findings(tmp_path, RIGHT) == []


@pytest.mark.requirement("bundle.tool.handler-for-every-export")
def test_handlers_are_compared_with_exports(name: str, tmp_path: Path) -> None:
    extra, missing = findings(tmp_path, RIGHT.replace("run", "runs"))
    assert (missing.level, missing.message) == ("error", "the entry has no handler 'run'")
    assert (extra.level, extra.message) == ("warning", "the handler 'runs' has no export")


@pytest.mark.requirement("bundle.tool.handlers-exported")
@pytest.mark.parametrize(
    ("text", "line", "part", "suggestion"),
    [
        ("export const one = 1;\n", 1, "does not export 'handlers'", "export const handlers"),
        ("\n\nexport const handlers = {;\n", 3, "importing the file throws", "Correct the syntax"),
        ("\nthrow new Error('no');\n", 2, "importing the file throws no", "Keep the top"),
        (
            f"import pad from 'no-such-package';\n{RIGHT}pad;\n",
            1,
            "no-such-package",
            "npm install no-such-package",
        ),
        (f"process.exit(3);\n{RIGHT}", 1, "ends the process", "Keep the top"),
        ("export const handlers = { run: 1 };\n", 1, "handlers['run'] must be a function", "export const"),
    ],
)
def test_fault_of_file_has_line_and_suggestion(
    name: str, tmp_path: Path, text: str, line: int, part: str, suggestion: str
) -> None:
    [finding] = findings(tmp_path, text)

    assert (finding.path, finding.line) == ("spec.entry", line)
    assert part in finding.message
    assert suggestion in (finding.suggestion or "")


def test_check_without_runtime_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_JAVASCRIPT", "/nowhere/node")

    [finding] = findings(tmp_path, RIGHT)

    assert "GOONDAN_JAVASCRIPT is '/nowhere/node'" in finding.message
    assert "pip install 'goondan-workers[node]'" in (finding.suggestion or "")


@pytest.mark.parametrize(
    ("version", "kind"),
    [("v22.18.0", "node"), ("v22.17.9", None), ("1.2.0", "bun"), ("1.1.9", None), ("?", None)],
)
def test_version_decides_kind_of_runtime(tmp_path: Path, version: str, kind: str | None) -> None:
    found = find_runtime(program(tmp_path / "program", version))
    assert (found and found.name) == kind


def test_bun_comes_before_node_but_for_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, bun = program(tmp_path / "node", "v24.1.0"), program(tmp_path / "bun", "1.3.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    find_runtime.cache_clear()
    try:
        found = [find_runtime(), find_runtime(preferred="node"), find_runtime("node")]
    finally:
        find_runtime.cache_clear()

    assert [one and one.program for one in found] == [bun, node, node]


def test_doctor_names_runtime_or_how_to_install_it(name: str, tmp_path: Path) -> None:
    found = runtime(name)
    right = javascript_check(None, name)
    wrong = javascript_check(None, str(tmp_path))

    assert (right.level, right.message) == ("ok", f"{name} {found.version} ({found.program})")
    assert wrong.level == "problem"
    assert "pip install" in (wrong.remedy or "")


def test_typescript_file_stands_in_for_its_javascript(tmp_path: Path) -> None:
    (tmp_path / "a.ts").touch()
    (tmp_path / "b.ts").touch()
    (tmp_path / "b.js").touch()

    assert [source_name(f"./{entry}", tmp_path) for entry in ("a.js", "b.js", "c.js")] == [
        "./a.ts",
        "./b.js",
        "./c.js",
    ]
