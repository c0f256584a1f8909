"""The built-in connectors as a whole: what they declare, and that they can be copied."""

import ast
import sys
from pathlib import Path

import pytest

import workers.builtin
from goondan_tasks.authoring.entry import connect_in, import_entry
from goondan_tasks.bundle import inspect_bundle, load_bundle

ROOT = Path(workers.builtin.__path__[0])
CONNECTORS = sorted(load_bundle(ROOT).connectors.items())
NAMES = [name for name, _ in CONNECTORS]
MAY_IMPORT = {
    "goondan_tasks.connector_api",
    "goondan_tasks.contract.messages",
    "goondan_tasks.contract.schedules",
    "goondan_tasks.contract.templates",
    "goondan_tasks.errors",
    "pydantic",
}


def source(name: str) -> str:
    return (ROOT / "connectors" / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_connector_is_one_file_that_uses_authoring_api(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)

    foreign = {module for module in imported if module.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= MAY_IMPORT


@pytest.mark.parametrize("name", NAMES)
def test_entry_has_connect_and_names_every_declared_event(name: str) -> None:
    resource = dict(CONNECTORS)[name]

    assert resource.spec.entry == f"./connectors/{name}.py"
    assert callable(connect_in(import_entry(ROOT / resource.spec.entry)))
    assert resource.spec.events or name == "webhook"  # whose names are the senders'
    assert all(f'"{event.name}"' in source(name) for event in resource.spec.events)


@pytest.mark.parametrize("name", NAMES)
def test_bundle_copy_replaces_built_in_connector(name: str, tmp_path: Path) -> None:
    (tmp_path / "connectors").mkdir()
    for suffix in (".py", ".yaml"):
        text = (ROOT / "connectors" / f"{name}{suffix}").read_text(encoding="utf-8")
        (tmp_path / "connectors" / f"{name}{suffix}").write_text(text)
    (tmp_path / "goondan.yaml").write_text(
        "apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: clerk }\n---\n"
        "apiVersion: goondan.ai/v1\nkind: Connection\nmetadata: { name: main }\n"
        f"spec: {{ connectorRef: Connector/{name} }}\n"
    )

    bundle, findings = inspect_bundle(tmp_path, import_entries=False)

    assert findings == []
    assert bundle is not None
    assert bundle.bound_connector("main").entry_path == tmp_path / "connectors" / f"{name}.py"
