"""The built-in package as a whole: what its Tools declare."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import workers.builtin
from goondan_tasks.authoring.entry import handlers_in, import_entry
from goondan_tasks.bundle import inspect_bundle
from tests.unit.workers.builtin.conftest import tool_resources

ROOT = Path(workers.builtin.__path__[0])
TOOLS = sorted(tool_resources().items())

#: every export's parameters with their defaults; `...` stands for none
PARAMETERS: dict[str, dict[str, Any]] = {
    "agents__request": {
        "target": ...,
        "input": ...,
        "instanceKey": ...,
        "eventType": "agent.request",
        "timeoutMs": 60_000,
        "async": False,
        "delay": ...,
        "notBefore": ...,
        "metadata": ...,
    },
    "agents__send": {
        "target": ...,
        "input": ...,
        "instanceKey": ...,
        "eventType": "agent.send",
        "delay": ...,
        "notBefore": ...,
        "metadata": ...,
    },
    "agents__spawn": {"target": ..., "instanceKey": ..., "cwd": ...},
    "agents__list": {"includeAll": False},
    "agents__catalog": {},
    "bash__exec": {"command": ..., "cwd": ..., "timeoutMs": 30_000, "env": ...},
    "bash__script": {"path": ..., "args": [], "shell": "/bin/bash", "timeoutMs": 30_000, "env": ...},
    "file-system__read": {"path": ..., "maxBytes": 100_000},
    "file-system__write": {"path": ..., "content": ..., "append": False},
    "file-system__list": {"path": ".", "recursive": False, "includeDirs": True, "includeFiles": True},
    "file-system__mkdir": {"path": ..., "recursive": True},
    "http-fetch__get": {"url": ..., "headers": ..., "timeoutMs": 30_000, "maxBytes": 500_000},
    "http-fetch__post": {
        "url": ...,
        "body": ...,
        "bodyString": ...,
        "headers": ...,
        "timeoutMs": 30_000,
        "maxBytes": 500_000,
    },
    "json-query__query": {"data": ..., "path": "."},
    "json-query__pick": {"data": ..., "keys": ...},
    "json-query__count": {"data": ..., "path": "."},
    "json-query__flatten": {"data": ..., "depth": 1},
    "text-transform__replace": {"text": ..., "search": ..., "replacement": "", "all": False},
    "text-transform__slice": {"text": ..., "start": 0, "end": ...},
    "text-transform__split": {"text": ..., "delimiter": "\n", "maxParts": ...},
    "text-transform__join": {"parts": ..., "delimiter": "\n"},
    "text-transform__trim": {"text": ..., "mode": "both"},
    "text-transform__case": {"text": ..., "to": ...},
    "wait__seconds": {"seconds": ...},
}
REPEATABLE = {"file-system__read", "file-system__list", "http-fetch__get", "wait__seconds"}
MAY_IMPORT = {
    "goondan_tasks.machine.atomic_file",
    "goondan_tasks.errors",
    "goondan_tasks.machine.inner_path",
    "goondan_tasks.contract.redaction",
    "goondan_tasks.tool_api",
    "httpx2",
    "workers.addresses",
    "workers.instances.paths",
}


def exports() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return every export and the Tool's spec, by full name."""
    return {
        f"{name}__{export['name']}": (export, tool["spec"])
        for name, tool in TOOLS
        for export in tool["spec"]["exports"]
    }


def test_package_is_clean_bundle_with_all_handlers() -> None:
    bundle, findings = inspect_bundle(ROOT)

    assert findings == []
    assert bundle
    for tool in bundle.tools.values():
        handlers = handlers_in(import_entry(ROOT / tool.spec.entry))
        assert set(handlers) == {export.name for export in tool.spec.exports}


def test_tools_are_labelled_and_limit_their_error_messages() -> None:
    assert all(tool["metadata"]["labels"] == {"tier": "base"} for _, tool in TOOLS)
    assert {name: tool["spec"]["errorMessageLimit"] for name, tool in TOOLS} == {
        "agents": 1500,
        "bash": 1200,
        "file-system": 2000,
        "http-fetch": 1000,
        "json-query": 1000,
        "text-transform": 1000,
        "wait": 600,
    }


def test_exports_have_their_parameters_and_defaults() -> None:
    declared = {
        name: {key: schema.get("default", ...) for key, schema in export["parameters"]["properties"].items()}
        for name, (export, _) in exports().items()
    }

    assert declared == PARAMETERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_export_tells_model_all_it_needs(name: str) -> None:
    export, _ = exports()[name]
    parameters = export["parameters"]

    assert export["description"].endswith(".")
    assert parameters["additionalProperties"] is False
    assert all(schema["description"] for schema in parameters["properties"].values())


@pytest.mark.parametrize("name", PARAMETERS)
def test_only_exports_that_change_nothing_may_run_twice(name: str) -> None:
    export, spec = exports()[name]
    is_pure = name.startswith(("json-query__", "text-transform__", "agents__"))

    assert export.get("idempotent", spec.get("idempotent", False)) == (is_pure or name in REPEATABLE)
    assert spec["timeoutSeconds"] > 0


@pytest.mark.parametrize("name", [name for name, _ in TOOLS])
def test_handlers_use_authoring_api_and_guards_only(name: str) -> None:
    entry = ROOT / tool_resources()[name]["spec"]["entry"]
    imported = set()
    for node in ast.walk(ast.parse(entry.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)

    foreign = {module for module in imported if module.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= MAY_IMPORT
