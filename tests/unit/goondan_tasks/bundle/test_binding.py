"""What an Agent's tools come to."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Bundle, inspect_bundle
from goondan_tasks.bundle.binding import merged
from tests.unit.goondan_tasks.bundle.writing import HANDLERS, TOOL, found_in, told, write

TOOLS = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: bash, labels: { tier: base, risk: high } }
spec:
  entry: ./echo.py
  timeoutSeconds: 60
  idempotent: true
  exports:
    - { name: exec, parameters: { type: object }, timeoutSeconds: 5 }
    - { name: script, parameters: { type: object }, idempotent: false, serial: true }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: read, labels: { tier: base } }
spec: { entry: ./echo.py, exports: [{ name: file, parameters: { type: object } }] }
---
"""
AGENT = "apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: coder }\nspec:\n  tools:\n"


def bundle(tmp_path: Path, *uses: str, base_root: Path | None = None) -> Bundle:
    """Return a bundle whose only Agent uses tools so."""
    text = TOOLS + AGENT + "".join(f"    - {use}\n" for use in uses)
    folder = write(tmp_path / "own", {"goondan.yaml": text})
    found, findings = inspect_bundle(folder, import_entries=False, base_root=base_root)
    assert found is not None, findings
    return found


@pytest.mark.requirement("catalog.from-agent-tools", "tool.name.format", "tool.name.single-export")
def test_tools_keep_declared_order_and_full_names(tmp_path: Path) -> None:
    tools = bundle(tmp_path, "Tool/read", "{ ref: Tool/bash }").bound_tools("coder")

    assert list(tools) == ["read__file", "bash__exec", "bash__script"]
    assert [bound.name for bound in tools.values()] == list(tools)
    assert tools["read__file"].entry_path == (tmp_path / "own" / "echo.py").resolve()


def test_export_inherits_policies_of_its_tool(tmp_path: Path) -> None:
    tools = bundle(tmp_path, "Tool/bash", "Tool/read").bound_tools("coder")

    exec_, script, file = (tools[name].export for name in ("bash__exec", "bash__script", "read__file"))

    assert (exec_.timeout_seconds, exec_.idempotent, exec_.serial) == (5, True, False)
    assert (script.timeout_seconds, script.idempotent, script.serial) == (60, False, True)
    assert (file.timeout_seconds, file.idempotent, file.requires_approval) == (None, False, False)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("{ kind: Tool, name: read }", ["read__file"]),
        ("{ name: read }", ["read__file"]),
        ("{ matchLabels: { tier: base } }", ["bash__exec", "bash__script", "read__file"]),
        ("{ matchLabels: { tier: base, risk: high } }", ["bash__exec", "bash__script"]),
        ("{ kind: Tool }", ["bash__exec", "bash__script", "read__file"]),
    ],
)
def test_selector_takes_all_that_match(tmp_path: Path, selector: str, names: list[str]) -> None:
    tools = bundle(tmp_path, f"{{ selector: {selector} }}").bound_tools("coder")

    assert list(tools) == names


@pytest.mark.requirement("tool.identity.last-wins")
def test_of_same_tool_twice_last_use_counts(tmp_path: Path) -> None:
    limit = "{ selector: { name: read }, overrides: { spec: { errorMessageLimit: 50 } } }"

    first = bundle(tmp_path, limit, "Tool/bash", "Tool/read").bound_tools("coder")
    last = bundle(tmp_path, "Tool/read", "Tool/bash", limit).bound_tools("coder")

    assert first["read__file"].tool.spec.error_message_limit == 1000
    assert last["read__file"].tool.spec.error_message_limit == 50
    assert list(last) == ["read__file", "bash__exec", "bash__script"]


def test_overrides_merge_replace_and_remove(tmp_path: Path) -> None:
    overrides = (
        "{ spec: { timeoutSeconds: ~, exports: [{ name: exec }] }, metadata: { labels: { risk: low } } }"
    )

    found = bundle(tmp_path, f"{{ selector: {{ name: bash }}, overrides: {overrides} }}")
    tools = found.bound_tools("coder")

    assert list(tools) == ["bash__exec"]
    assert tools["bash__exec"].export.timeout_seconds is None
    assert tools["bash__exec"].tool.metadata.labels == {"tier": "base", "risk": "low"}
    assert found.tools["bash"].spec.timeout_seconds == 60, "the bundle's own Tool stays as it is"


@pytest.mark.parametrize(
    ("overrides", "path", "code"),
    [
        ("{ spec: { errorMessageLimit: 0 } }", ".spec.errorMessageLimit", "SCHEMA_INVALID"),
        ("{ spec: { entry: ~ } }", ".spec.entry", "SCHEMA_INVALID"),
        ("{ spec: { entry: ../x.py } }", ".spec.entry", "ENTRY_NOT_FOUND"),
        ("{ spec: { entri: x } }", ".spec.entri", "SCHEMA_INVALID"),
        ("{ spec: { exports: [{ name: a }, { name: a }] } }", ".spec.exports[1].name", "DUPLICATE_NAME"),
        (
            "{ spec: { exports: [{ name: a, parameters: { type: int } }] } }",
            ".spec.exports[0].parameters.type",
            "SCHEMA_INVALID",
        ),
        ("{ metadata: { name: other } }", ".metadata.name", "SCHEMA_INVALID"),
        ("{ kind: Agent }", "", "INVALID_REF"),
    ],
)
def test_wrong_overrides_are_reported_at_their_place(
    tmp_path: Path, overrides: str, path: str, code: str
) -> None:
    use = f"    - selector: {{ name: bash }}\n      overrides: {overrides}\n"

    findings = [
        item
        for item in found_in(write(tmp_path, {"goondan.yaml": TOOLS + AGENT + use}))
        if item.level == "error"
    ]

    place = f"spec.tools[0].overrides{path}" if path else "spec.tools[0]"
    assert told(findings) == [(22 + bool(path), f"E_CONFIG_{code}", place)]


def test_merging_follows_standard() -> None:
    original = {"a": {"b": 1, "c": [1, 2]}, "d": 1}

    assert merged(original, {"a": {"b": None, "c": [3], "n": {"x": None, "y": 1}}, "d": {"e": 2}}) == {
        "a": {"c": [3], "n": {"y": 1}},
        "d": {"e": 2},
    }
    assert original == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


def base_package(tmp_path: Path) -> Path:
    """Write a built-in package with a ``wait`` and a ``bash`` of its own."""
    texts = {
        f"{name}/tool.yaml": TOOL.replace("name: echo", f"name: {name}").replace("./echo", f"./{name}/run")
        for name in ("wait", "bash")
    }
    return write(tmp_path / "base", {**texts, "wait/run.py": HANDLERS, "bash/run.py": HANDLERS})


def test_tool_missing_from_bundle_comes_from_built_ins(tmp_path: Path) -> None:
    base = base_package(tmp_path)

    found = bundle(tmp_path, "Tool/wait", "Tool/bash", base_root=base)

    tools = found.bound_tools("coder")
    assert list(tools) == ["wait__run", "bash__exec", "bash__script"]
    assert tools["wait__run"].entry_path == base / "wait" / "run.py"
    assert "wait" not in found.tools


@pytest.mark.parametrize(
    "use",
    [
        "{ kind: Tool, name: bash, package: '@goondan/base' }",
        "{ ref: { kind: Tool, name: bash, package: '@goondan/base' } }",
    ],
)
def test_reference_may_ask_for_built_in_package(tmp_path: Path, use: str) -> None:
    tools = bundle(tmp_path, use, base_root=base_package(tmp_path)).bound_tools("coder")

    assert list(tools) == ["bash__run"]


def test_selector_finds_built_ins_by_name_not_label(tmp_path: Path) -> None:
    base = base_package(tmp_path)
    overrides = "overrides: { spec: { errorMessageLimit: 7 } }"

    by_name = bundle(tmp_path, f"{{ selector: {{ name: wait }}, {overrides} }}", base_root=base)
    by_label = bundle(tmp_path, "{ selector: { matchLabels: { tier: base } } }", base_root=base)

    assert by_name.bound_tools("coder")["wait__run"].tool.spec.error_message_limit == 7
    assert "wait__run" not in by_label.bound_tools("coder")


@pytest.mark.requirement("registry.all-tools")
def test_registry_holds_bundles_and_used_built_in_tools(tmp_path: Path) -> None:
    found = bundle(tmp_path, "Tool/wait", base_root=base_package(tmp_path))

    assert sorted(found.all_tools()) == ["bash__exec", "bash__script", "read__file", "wait__run"]
    assert found.all_tools()["bash__exec"].tool is found.tools["bash"]
