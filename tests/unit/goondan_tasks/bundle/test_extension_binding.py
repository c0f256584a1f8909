"""What an Agent's extensions come to, and what a check of their files finds."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Bundle, inspect_bundle
from tests.unit.goondan_tasks.bundle.writing import found_in, told, write

EXTENSIONS = """\
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: audit, labels: { tier: base } }
spec: { entry: ./audit.py, config: { level: low, keep: { days: 3, size: 9 } } }
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: clock, labels: { tier: base } }
spec: { entry: ./audit.py }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec:
  extensions:
"""
REGISTER = "def register(api, config=None): ...\n"


def folder(tmp_path: Path, *uses: str, register: str = REGISTER) -> Path:
    text = EXTENSIONS + "".join(f"    - {use}\n" for use in uses)
    return write(tmp_path, {"goondan.yaml": text, "audit.py": register})


def bundle(tmp_path: Path, *uses: str) -> Bundle:
    found, findings = inspect_bundle(folder(tmp_path, *uses), import_entries=False)
    assert found is not None, findings
    return found


def test_extensions_stand_in_declared_order_with_their_config(tmp_path: Path) -> None:
    clock, audit = bundle(tmp_path, "Extension/clock", "{ ref: Extension/audit }").bound_extensions("coder")

    assert (clock.name, clock.config) == ("clock", {})
    assert (audit.name, audit.config) == ("audit", {"level": "low", "keep": {"days": 3, "size": 9}})
    assert audit.entry_path == (tmp_path / "audit.py").resolve()


def test_config_is_merged_by_key_then_overridden(tmp_path: Path) -> None:
    use = "{ ref: Extension/audit, config: { level: high, keep: { days: 1 }, more: null } }"
    [configured] = bundle(tmp_path, use).bound_extensions("coder")
    [unchanged] = bundle(tmp_path, "{ ref: Extension/audit, config: {} }").bound_extensions("coder")
    selected = "{ selector: { name: audit }, overrides: { spec: { config: { keep: { days: null } } } } }"
    [overridden] = bundle(tmp_path, selected).bound_extensions("coder")

    assert configured.config == {"level": "high", "keep": {"days": 1}, "more": None}
    assert unchanged.config == {"level": "low", "keep": {"days": 3, "size": 9}}
    assert overridden.config == {"level": "low", "keep": {"size": 9}}


def test_of_one_extension_used_twice_last_use_counts(tmp_path: Path) -> None:
    uses = ("Extension/audit", "Extension/clock", "{ ref: Extension/audit, config: { level: high } }")
    audit, clock = bundle(tmp_path, *uses).bound_extensions("coder")

    assert (audit.config["level"], clock.name) == ("high", "clock")


def test_extension_missing_from_bundle_is_built_in(tmp_path: Path) -> None:
    [logging] = bundle(tmp_path, "Extension/logging").bound_extensions("coder")

    assert logging.entry_path.parent.name == "builtin"
    assert logging.config["level"] == "info"


def test_dangling_or_breaking_use_of_extension_is_found(tmp_path: Path) -> None:
    bent = "{ selector: { name: audit }, overrides: { spec: { entry: ../out.py } } }"
    misspelt = "{ selector: { name: audit }, overrides: { spec: { confg: {} } } }"
    findings = found_in(folder(tmp_path, "Extension/adit", bent, misspelt))

    assert told(findings) == [
        (16, "E_CONFIG_REF_NOT_FOUND", "spec.extensions[0]"),
        (17, "E_CONFIG_ENTRY_NOT_FOUND", "spec.extensions[1].overrides.spec.entry"),
        (18, "E_CONFIG_SCHEMA_INVALID", "spec.extensions[2].overrides.spec.confg"),
    ]
    assert "audit" in findings[0].suggestion


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "the file does not define 'register'"),
        ("register = 3\n", "'register' must be a function, not int"),
        ("def register(): ...\n", "'register' cannot be called with (api) or (api, config)"),
        ("def register(api, config, more): ...\n", "'register' cannot be called with (api) or (api, config)"),
        ("import nowhere_to_be_found\n", "importing the file raises ModuleNotFoundError"),
        ("def register(api:\n", "'(' was never closed"),
    ],
)
def test_file_without_usable_register_is_found(tmp_path: Path, text: str, message: str) -> None:
    findings = found_in(folder(tmp_path, "Extension/clock", register=text), import_entries=True)

    assert {finding.resource for finding in findings} == {"Extension/audit", "Extension/clock"}
    assert all(finding.file.endswith("audit.py") and message in finding.message for finding in findings)


@pytest.mark.parametrize(
    "text",
    [
        "def register(api): ...\n",
        "async def register(api, config): ...\n",
        "class It:\n    def __call__(self, api): ...\nregister = It()\n",
    ],
)
def test_every_form_of_register_is_accepted(tmp_path: Path, text: str) -> None:
    assert found_in(folder(tmp_path, "Extension/clock", register=text), import_entries=True) == []


GUARDED = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec:
  tools: [Tool/wait]
  requiredTools: [wait__seconds]
"""

MODEL = "apiVersion: goondan.ai/v1\nkind: Model\nmetadata: { name: m }\nspec: { provider: p, model: m }\n"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("  entry: ./clerk.py\n", {"required-tools-guard": {"requiredTools": ["wait__seconds"]}}),
        (
            "  modelConfig: { modelRef: Model/m }\n",
            {"required-tools-guard": {"requiredTools": ["wait__seconds"]}},
        ),
        ("", {}),
        (
            "  entry: ./clerk.py\n"
            "  extensions: [{ ref: Extension/required-tools-guard, config: { maxRetries: 0 } }]\n",
            {"required-tools-guard": {"maxRetries": 0, "requiredTools": ["wait__seconds"]}},
        ),
    ],
)
def test_required_tools_guard_agents_with_entry_or_model(
    tmp_path: Path, more: str, found: dict[str, object]
) -> None:
    files = {"goondan.yaml": GUARDED + more, "model.yaml": MODEL, "clerk.py": "def handle(ctx, event): ...\n"}
    loaded, findings = inspect_bundle(write(tmp_path, files), import_entries=False)

    assert loaded is not None, findings
    assert {one.name: one.config for one in loaded.bound_extensions("clerk")} == found
