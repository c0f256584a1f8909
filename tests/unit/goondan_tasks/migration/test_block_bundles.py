"""Older bundles that are written by hand, in today's version."""

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.bundle.resource import V1_API_VERSION
from goondan_tasks.bundle.yaml import parse_documents
from goondan_tasks.migration import migrate_bundle
from tests.unit.goondan_tasks.bundle.writing import HANDLERS
from tests.unit.goondan_tasks.migration.block_bundles import block_text, resources


# making a bundle smaller that fails would take minutes
@settings(
    max_examples=settings().max_examples // 2,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(draw=st.data())
def test_valid_bundle_in_any_style_loads_migrated(tmp_path: Path, draw: st.DataObject) -> None:
    documents = draw.draw(resources())
    file = tmp_path / "goondan.yaml"
    text = draw.draw(block_text(documents))
    file.write_bytes(text.encode())
    (tmp_path / "t.py").write_text(HANDLERS, encoding="utf-8")
    (tmp_path / "e.py").write_text("def register(api):\n    api.logger.info('x')\n", encoding="utf-8")
    assert errors(tmp_path) == []

    migration = migrate_bundle(tmp_path)
    file.write_bytes(migration.files[file].encode())

    assert errors(tmp_path) == []
    left = [finding for finding in migration.findings if finding.level == "error"]
    # nothing stays but for its names
    assert {finding.path for finding in left} <= {"spec.exports"}
    stays = {finding.resource for finding in left}
    after = {f"{one['kind']}/{one['metadata']['name']}": one for one in data(migration.files[file])}
    assert len(after) == len(documents)
    assert {name for name, one in after.items() if one["apiVersion"] == V1_API_VERSION} == stays
    own = next(one["spec"]["config"] for one in documents if one["kind"] == "Extension")
    assert after["Extension/e"]["spec"]["config"] == own
    assert migrate_bundle(tmp_path).changed == ()


def errors(bundle: Path) -> list[str]:
    """Return what keeps a bundle from being used, but for handlers that are called as before."""
    found = inspect_bundle(bundle, import_entries=False)[1]
    return [str(finding) for finding in found if finding.level == "error"]


def data(text: str) -> list[Any]:
    """Return the data of the documents."""
    documents, faults = parse_documents(text, "")
    assert faults == []
    return [document.data for document in documents]
