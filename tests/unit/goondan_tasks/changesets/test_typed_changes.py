"""An agent's changes of ``@tool`` functions: what they declare protects as YAML does."""

from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import CommitResult
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.policy import ChangesetRules, Principal
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import HANDLERS

YAML = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy:
    maxStepsPerTurn: 8
    changesets: { enabled: true, allowed: { files: ["**/*.yaml", "tools/*.py"] } }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: [Tool/pay], requiredTools: [pay__run] }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: pay }
spec: { entry: ./tools/pay.py, exports: auto }
"""
LISTED = YAML.replace("exports: auto", "exports: [{ name: run }]")
TYPED = """\
from goondan_tasks.tool_api import tool


@tool(requires_approval=True, timeout_seconds=9)
def run(amount: int) -> None:
    '''Pay.'''
"""
PLAIN = TYPED.replace("requires_approval=True, ", "")


def committed(place: Path, before: dict[str, str], after: dict[str, str]) -> tuple[GitBundle, CommitResult]:
    bundle = make_bundle(place / "repo", files=before)
    principal = Principal(
        place / "work", ChangesetRules.of(load_bundle(bundle.folder), "coder"), "coder", "i"
    )
    changesets = bundle.changesets()
    opened = changesets.open(principal)
    for path, content in after.items():
        Path(opened.workdir, path).write_text(content, encoding="utf-8")
    return bundle, changesets.commit(opened.changeset_id, principal=principal)


@pytest.mark.parametrize("yaml", [YAML, LISTED], ids=["auto", "listed"])
@pytest.mark.parametrize(
    "after",
    [
        {"tools/pay.py": PLAIN},
        {"tools/pay.py": TYPED.replace("=9", "=99")},
        {"tools/pay.py": TYPED.replace("requires_approval", "serial=True, requires_approval")},
        {"tools/pay.py": HANDLERS, "goondan.yaml": LISTED.replace("}]", ", timeoutSeconds: 9 }]")},
        {"goondan.yaml": LISTED.replace("name: run", "name: run, requiresApproval: false")},
    ],
)
def test_agent_cannot_change_how_typed_function_runs(
    tmp_path: Path, yaml: str, after: dict[str, str]
) -> None:
    bundle, result = committed(tmp_path, {"goondan.yaml": yaml, "tools/pay.py": TYPED}, after)

    assert result.error is not None, result
    assert (result.status, result.error.code) == ("rejected", "POLICY_VIOLATION"), result.error
    assert bundle.tracked() == {"goondan.yaml", "tools/pay.py", "echo.py"}
    assert bundle.committed("tools/pay.py") == TYPED.strip()


@pytest.mark.parametrize("yaml", [YAML, LISTED], ids=["auto", "listed"])
def test_agent_may_change_what_typed_function_does(tmp_path: Path, yaml: str) -> None:
    changed = TYPED.replace("amount: int", "amount: float").replace("Pay.", "Pay more.")
    bundle, result = committed(
        tmp_path, {"goondan.yaml": yaml, "tools/pay.py": TYPED}, {"tools/pay.py": changed}
    )

    assert result.status == "ok", result
    assert bundle.committed("tools/pay.py") == changed.strip()


@pytest.mark.parametrize("old", ["maxStepsPerTurn: 8", '"tools/*.py"'])
def test_otherwise_refused_changeset_imports_no_typed_code(tmp_path: Path, old: str) -> None:
    alarm = tmp_path / "alarm"
    code = f"from pathlib import Path\nPath({str(alarm)!r}).touch()\n{TYPED}"
    after = {
        "tools/pay.py": code,
        "goondan.yaml": YAML.replace(old, old.replace("8", "80").replace("tools/", "")),
    }

    _, refused = committed(tmp_path, {"goondan.yaml": YAML, "tools/pay.py": TYPED}, after)
    assert refused.status == "rejected"
    assert not alarm.exists()

    _, allowed = committed(
        tmp_path / "again", {"goondan.yaml": YAML, "tools/pay.py": TYPED}, {"tools/pay.py": code}
    )
    assert allowed.status == "ok"
    assert alarm.exists()
