"""From a path to a bundle or its findings."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from goondan_tasks.authoring.entry import PREFIX
from goondan_tasks.bundle import BundleError, inspect_bundle, load_bundle
from goondan_tasks.bundle.findings import MAX_FINDINGS
from goondan_tasks.contract.errors import ConfigError
from tests.unit.goondan_tasks.bundle.odd_texts import TEXTS
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

FAULTY = TOOL.replace("entry: ./echo.py", "errorMessageLimit: 0\n  entry: ./gone.py")


def test_faulty_bundle_is_refused_with_all_errors(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as refusal:
        load_bundle(write(tmp_path, {"goondan.yaml": FAULTY}))

    error = refusal.value
    assert isinstance(error, ConfigError)
    assert (error.code, len(error.findings)) == ("E_CONFIG_SCHEMA_INVALID", 2)
    assert f"{tmp_path}/goondan.yaml:5: error E_CONFIG_SCHEMA_INVALID Tool/echo" in error.message
    assert "./gone.py" in error.message


def test_single_error_brings_its_own_suggestion(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as refusal:
        load_bundle(write(tmp_path, {"goondan.yaml": TOOL.replace("entry:", "entri:")}))

    assert refusal.value.suggestion == "Run `goondan validate` for every finding, with file and line."
    with pytest.raises(BundleError) as refusal:
        load_bundle(write(tmp_path, {"goondan.yaml": TOOL.replace("exports:", "exportz: 1\n  exports:")}))
    assert refusal.value.suggestion == "Did you mean 'exports'?"


def test_warnings_refuse_nothing(tmp_path: Path) -> None:
    text = TOOL.replace(", parameters: { type: object }", "")

    bundle, findings = inspect_bundle(write(tmp_path, {"goondan.yaml": text}))

    assert bundle is not None
    assert [finding.level for finding in findings] == ["warning"]
    assert load_bundle(tmp_path).tools["echo"].spec.exports[0].parameters is None


def test_loading_imports_no_entry_and_inspecting_does(tmp_path: Path) -> None:
    write(tmp_path, {"goondan.yaml": TOOL, "echo.py": "raise RuntimeError\n"})

    assert load_bundle(tmp_path).tools
    bundle, findings = inspect_bundle(tmp_path)

    assert bundle is None
    assert [Path(finding.file).name for finding in findings] == ["echo.py"]
    assert not [
        name for name in sys.modules if name.startswith(PREFIX) and str(tmp_path) in repr(sys.modules[name])
    ]


def test_findings_are_sorted_by_file_and_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"z/tool.yaml": FAULTY, "a/tool.yaml": FAULTY.replace("echo", "other"), "goondan.yaml": "a: ["},
    )

    places = [(finding.file, finding.line) for finding in inspect_bundle(tmp_path)[1]]

    assert places == sorted(places)
    assert len(places) == 5


def test_thousands_of_findings_are_cut_to_first_errors(tmp_path: Path) -> None:
    exports = "    - { name: run }\n" * 3_000

    bundle, findings = inspect_bundle(write(tmp_path, {"goondan.yaml": f"{TOOL}{exports}"}))

    assert bundle is None
    assert len(findings) == MAX_FINDINGS + 1
    assert {finding.level for finding in findings} == {"error"}
    assert findings[-1].message == "5000 more findings are not shown"


def test_finding_goes_on_wire_with_every_field(tmp_path: Path) -> None:
    folder = write(tmp_path, {"goondan.yaml": TOOL.replace("./echo.py", "./gone.py")})

    (finding,) = inspect_bundle(folder)[1]

    assert json.loads(json.dumps(finding.to_wire())) == {
        "level": "error",
        "code": "E_CONFIG_ENTRY_NOT_FOUND",
        "message": "the entry './gone.py' cannot be found (No such file or directory)",
        "file": f"{folder}/goondan.yaml",
        "line": 5,
        "path": "spec.entry",
        "resource": "Tool/echo",
        "suggestion": f"Create it, or correct the path; it starts from {folder}.",
    }


def test_paths_of_findings_are_those_that_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "swarm", {"goondan.yaml": TOOL, "echo.py": "x = 1\n"})
    monkeypatch.chdir(tmp_path)

    (finding,) = inspect_bundle(Path("swarm"))[1]

    assert finding.file == "swarm/echo.py"


ODD_PACKAGE = {
    "apiVersion": "goondan.ai/v1",
    "kind": "Package",
    "metadata": {"name": "odd"},
    "spec": {"dependencies": [{"name": [], "version": 1}]},
}


@settings(
    max_examples=3 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=TEXTS)
@example(text=json.dumps(ODD_PACKAGE))
def test_no_yaml_makes_inspection_raise(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, {})
    (folder / "goondan.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))

    bundle, findings = inspect_bundle(folder, import_entries=False)

    assert (bundle is None) == any(finding.level == "error" for finding in findings)
    assert all(finding.message and finding.suggestion and finding.line > 0 for finding in findings)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.binary(max_size=200))
def test_no_bytes_make_inspection_raise(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "goondan.yaml").write_bytes(data)

    bundle, findings = inspect_bundle(tmp_path, import_entries=False)

    assert bundle is None
    assert findings


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_bundle_missing_any_piece_is_loaded_or_explained(tmp_path: Path, data: st.DataObject) -> None:
    text = f"{TOOL}---\n{AGENT}"
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))

    folder = write(tmp_path, {"goondan.yaml": text[:start] + text[end:]})

    bundle, findings = inspect_bundle(folder, import_entries=False)

    assert bundle is not None or findings
