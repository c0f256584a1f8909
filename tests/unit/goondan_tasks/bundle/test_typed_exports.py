"""Exports that the ``@tool`` functions of an entry declare."""

from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import Bundle, build_catalog, load_bundle
from goondan_tasks.bundle.bundle import inspect_resources
from tests.unit.goondan_tasks.bundle.writing import AGENT, found_in, told, write

AUTO = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: echo }
spec:
  entry: ./echo.py
  timeoutSeconds: 9
  exports: auto
"""
LISTED = AUTO.replace("exports: auto", "exports:\n    - { name: say-it }")
TYPED = '''\
from goondan_tasks.tool_api import tool


@tool(idempotent=True)
def say_it(text: str) -> str:
    """Say it."""
    return text


@tool(timeout_seconds=3)
async def be_quiet() -> None: ...
'''
PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


def bundle(folder: Path, yaml: str = AUTO, entry: str = TYPED, agent: str = AGENT) -> Path:
    return write(folder, {"goondan.yaml": f"{yaml}---\n{agent}", "echo.py": entry})


def exports(loaded: Bundle) -> dict[str, Any]:
    return {name: tool.export for name, tool in loaded.bound_tools("coder").items()}


def test_auto_exports_are_entry_functions_in_order(tmp_path: Path) -> None:
    loaded = load_bundle(bundle(tmp_path))

    found = exports(loaded)
    say, quiet = found.values()
    assert list(found) == ["echo__say-it", "echo__be-quiet"]
    assert (say.description, say.parameters, say.idempotent, say.timeout_seconds) == (
        "Say it.",
        PARAMETERS,
        True,
        9,
    )
    assert (quiet.description, quiet.idempotent, quiet.timeout_seconds) == (None, False, 3)
    assert next(item.parameters for item in build_catalog(loaded, "coder")) == PARAMETERS
    assert list(loaded.all_tools()) == list(found)
    assert found_in(tmp_path, import_entries=True) == []


def test_changed_function_is_another_export(tmp_path: Path) -> None:
    load_bundle(bundle(tmp_path))

    loaded = load_bundle(bundle(tmp_path, entry=TYPED.replace("text: str", "words: list[str]")))

    assert list(exports(loaded)["echo__say-it"].parameters["properties"]) == ["words"]


def test_handlers_choose_and_name_auto_exports(tmp_path: Path) -> None:
    loaded = load_bundle(bundle(tmp_path, entry=f"{TYPED}\nhandlers = {{'say': say_it}}\n"))

    assert [(name, one.parameters) for name, one in exports(loaded).items()] == [("echo__say", PARAMETERS)]


def test_sibling_functions_are_exported_where_imported(tmp_path: Path) -> None:
    write(tmp_path, {"words.py": TYPED})
    loaded = load_bundle(bundle(tmp_path, entry="from .words import say_it, say_it as again\n"))

    assert list(exports(loaded)) == ["echo__say-it"]


def test_yaml_of_export_overrides_its_function(tmp_path: Path) -> None:
    def listed(item: str) -> Any:
        yaml = LISTED.replace("{ name: say-it }", item)
        [export] = exports(load_bundle(bundle(tmp_path, yaml))).values()
        return export.description, export.parameters, export.idempotent

    assert listed("{ name: say-it }") == ("Say it.", PARAMETERS, True)
    assert listed("{ name: say-it, description: null, idempotent: false }") == ("Say it.", PARAMETERS, False)
    own = "{ name: say-it, description: Mine., parameters: { type: object } }"
    assert listed(own) == ("Mine.", {"type": "object"}, True)


def test_overrides_change_auto_exports_as_those_in_yaml(tmp_path: Path) -> None:
    changed = "{ timeoutSeconds: 5, exports: [{ name: say-it, description: Mine. }] }"
    use = "{ selector: { kind: Tool, name: echo }, overrides: { spec: %s } }"
    agent = AGENT.replace('"Tool/echo"', use % changed)

    [say] = exports(load_bundle(bundle(tmp_path, agent=agent))).values()

    assert (say.description, say.timeout_seconds) == ("Mine.", 5)
    [refused] = found_in(bundle(tmp_path, agent=AGENT.replace('"Tool/echo"', use % "{ exports: auto }")))
    assert refused.message == "overrides cannot set the exports to auto"


def test_entries_without_typed_functions_load_without_import(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    touch = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nhandlers = {{'say-it': print}}\n"

    load_bundle(bundle(tmp_path, LISTED, touch))
    assert not mark.exists()

    load_bundle(bundle(tmp_path, LISTED, f"{touch}{TYPED}"))
    assert mark.exists()


def test_auto_exports_tool_is_missing_when_imports_are_off(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    entry = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n{TYPED}"
    agent = AGENT.replace("spec: {", 'spec: { requiredTools: ["echo__say-it"],')

    loaded, findings, _ = inspect_resources(
        bundle(tmp_path, entry=entry, agent=agent), import_entries=False, import_typed=False
    )

    assert loaded is not None
    assert (dict(loaded.tools), findings, mark.exists()) == ({}, [], False)
    assert list(load_bundle(tmp_path).tools) == ["echo"]


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        (
            TYPED.replace("text: str", "text"),
            ("echo.py", 4),
            "@tool say_it, parameter 'text': it has no type",
        ),
        ("raise ValueError('no')\n", ("echo.py", 1), "importing the file raises ValueError: no"),
        ("x = 1\n", ("echo.py", 1), "the file does not define 'handlers'"),
        (
            f"{TYPED}\n\n@tool(name='say-it')\ndef other() -> None: ...\n",
            ("echo.py", 14),
            "two @tool functions",
        ),
        (
            "handlers = {'say': print}\n",
            ("goondan.yaml", 7),
            "the handler 'say' does not declare its export",
        ),
        (TYPED.replace("=3", "='x'"), ("goondan.yaml", 7), 'must be a number, not "x"'),
        (
            TYPED.replace("idempotent=True", "idempotency_key=['word']"),
            ("goondan.yaml", 7),
            "'word' is not an arg",
        ),
        (
            TYPED.replace("idempotent=True", "retry={'max': 2}"),
            ("goondan.yaml", 7),
            "only an idempotent export",
        ),
    ],
)
@pytest.mark.parametrize("import_entries", [False, True])
def test_typed_export_fault_is_found_once_with_place(
    tmp_path: Path, entry: str, place: tuple[str, int], message: str, import_entries: bool
) -> None:
    [found] = found_in(bundle(tmp_path, entry=entry), import_entries=import_entries)

    assert (Path(found.file).name, found.line, found.level) == (*place, "error")
    assert found.message.startswith(message)
    assert found.resource == "Tool/echo"
    assert found.suggestion


def test_unknown_exports_word_or_older_tool_needs_list(tmp_path: Path) -> None:
    word = found_in(bundle(tmp_path / "word", AUTO.replace("auto", "all")))
    older = AUTO.replace("goondan.ai/v1", "agents.example.io/v1alpha1").replace("  timeoutSeconds: 9\n", "")

    assert told(word)[0] == (7, "E_CONFIG_SCHEMA_INVALID", "spec.exports")
    assert "spec.exports" in {found.path for found in found_in(bundle(tmp_path / "older", older))}
