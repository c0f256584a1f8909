"""The JSON Schema for editors, held against the bundles of the tests, the examples and the pages."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.bundle.inventory import bundle_files, declare, read_text
from goondan_tasks.bundle.json_schema import DRAFT, bundle_schema
from goondan_tasks.bundle.yaml import Document, parse_documents
from tests.docs.pages import every_page
from tests.unit.goondan_tasks.cli.invoke import goondan

ROOT = Path(__file__).parents[4]
BUNDLES = [
    *sorted((ROOT / "tests/bundles").iterdir()),
    *sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir()),
]
SCHEMA = bundle_schema()
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)

TOOL: dict[str, Any] = {
    "apiVersion": "goondan.ai/v1",
    "kind": "Tool",
    "metadata": {"name": "notes"},
    "spec": {"entry": "./notes.py", "exports": [{"name": "add"}]},
}
AGENT: dict[str, Any] = {"apiVersion": "goondan.ai/v1", "kind": "Agent", "metadata": {"name": "writer"}}
OLDER = "agents.example.io/v1alpha1"


def documents(bundle: Path) -> Iterator[Document]:
    for file in bundle_files(bundle):
        yield from parse_documents(read_text(file)[0], str(file))[0]


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.name)
def test_bundle_that_is_valid_satisfies_schema(bundle: Path) -> None:
    is_valid = inspect_bundle(bundle, import_entries=False)[0] is not None
    faulty = [document.data for document in documents(bundle) if not VALIDATOR.is_valid(document.data)]

    assert not (is_valid and faulty)


def test_schema_refuses_only_self_contained_faults() -> None:
    found = list(documents(ROOT / "tests/bundles/thirty-faults"))
    refused = [document for document in found if not VALIDATOR.is_valid(document.data)]

    assert (len(found), len(refused)) == (21, 10)
    assert all(declare(document)[1] for document in refused)


def test_resources_on_pages_satisfy_schema() -> None:
    blocks = [block for page in every_page() for block in page.blocks() if block.language == "yaml"]
    texts = [block.text for block in blocks if "apiVersion: goondan.ai/v1\n" in block.text]
    found = [document.data for text in texts for document in parse_documents(text, "page")[0]]
    # the pages about errors show what is wrong
    refused = [data for data in found if not VALIDATOR.is_valid(data) and not declare_faults(data)]

    assert len(found) >= 50
    assert refused == []


def declare_faults(data: Any) -> list[str]:
    [document], _ = parse_documents(yaml.safe_dump(data), "page")
    return [str(finding) for finding in declare(document)[1]]


def changed(resource: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    """Return a resource with another value at ``path``."""
    made = copy.deepcopy(resource)
    *owners, name = path
    inner = made
    for owner in owners:
        inner = inner.setdefault(owner, {})
    inner[name] = to
    return made


@pytest.mark.parametrize(
    ("resource", "is_valid"),
    [
        (TOOL, True),
        (changed(TOOL, "spec", "exports", to="auto"), True),
        (changed(TOOL, "spec", "exports", to="all"), False),
        (changed(TOOL, "spec", "exports", to=[]), False),
        (changed(TOOL, "spec", "exports", to=[{"name": "add", "descripton": "misspelt"}]), False),
        (changed(TOOL, "spec", "timeoutSeconds", to=0.5), True),
        (changed(TOOL, "spec", "timeoutSeconds", to="30"), False),
        (changed(TOOL, "spec", "sandbox", to="strict"), True),
        (changed(TOOL, "spec", "sandbox", to="lax"), False),
        (changed(TOOL, "spec", "rateLimit", to="10/s"), True),
        (changed(TOOL, "spec", "rateLimit", to="10/day"), False),
        (changed(TOOL, "spec", "env", to=["API_KEY"]), True),
        (changed(TOOL, "spec", "env", to={"API_KEY": {"valueFrom": {"env": "KEY"}}}), True),
        (changed(TOOL, "spec", "env", to={"API_KEY": {"valueFrom": "KEY"}}), False),
        (changed(TOOL, "kind", to="Tol"), False),
        (changed(TOOL, "metadata", "lables", to={}), False),
        (changed(TOOL, "apiVersion", to=OLDER), False),
        (changed(changed(TOOL, "apiVersion", to=OLDER), "spec", "runtime", to="python"), True),
        (AGENT, True),
        (changed(AGENT, "spec", "tools", to=["Tool/bash", {"kind": "Tool", "name": "notes"}]), True),
        (changed(AGENT, "spec", "tools", to=[{"ref": "Tool/bash"}]), True),
        (changed(AGENT, "spec", "tools", to=[{"selector": {"matchLabels": {"a": "b"}}}]), True),
        (changed(AGENT, "spec", "tools", to=[{"selector": {}}]), False),
        (changed(AGENT, "spec", "tools", to=["bash"]), False),
        (
            changed(AGENT, "spec", "extensions", to=[{"ref": "Extension/mcp", "config": {"servers": {}}}]),
            True,
        ),
        (changed(AGENT, "spec", "entry", to=""), False),
        ({"kind": "Agent", "metadata": {"name": "writer"}}, False),
        ([AGENT], False),
    ],
)
def test_schema_agrees_with_check_of_resource(resource: Any, is_valid: bool) -> None:
    assert VALIDATOR.is_valid(resource) is is_valid
    assert (declare_faults(resource) == []) is is_valid


def test_schema_reports_fault_for_its_kind_only() -> None:
    errors = list(VALIDATOR.iter_errors(changed(AGENT, "spec", "tols", to=[])))

    assert [error.message for error in errors] == [
        "Additional properties are not allowed ('tols' was unexpected)"
    ]


def test_editor_schema_is_one_document_without_internals() -> None:
    printed = goondan("schema")

    assert printed.document == goondan("schema", "--json").document == json.loads(json.dumps(SCHEMA))
    assert printed.document["$schema"] == DRAFT
    assert "§" not in printed.stdout
    assert '"default": null' not in printed.stdout
