"""What protects is beyond an agent's changesets, unless the Swarm says ``allowPolicyChanges: true``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.authoring.changesets_api import CommitResult
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.check import BundleCheck, Checked, changed_permissions
from goondan_tasks.changesets.policy import ChangesetRules, Principal
from goondan_tasks.machine import sandbox
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import HANDLERS, write

HEAD = "apiVersion: goondan.ai/v1\nkind: "
OLDER_HEAD = "apiVersion: agents.example.io/v1alpha1\nkind: "
PARTS = {
    "package": "Package\nmetadata: { name: bank }\nspec: {}\n",
    "swarm": """\
Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy:
    maxStepsPerTurn: 8
    toolCalls: { approval: ["pay__*"] }
    changesets: { enabled: true, allowed: { files: ["**/*.yaml", "tools/**"] } }
""",
    "agent": """\
Agent
metadata: { name: coder }
spec:
  requiredTools: [audit__run]
  entry: ./tools/coder.py
  workdir: shared
  tools:
    - Tool/pay
    - Tool/audit
    - selector: { kind: Tool, name: bash }
      overrides: { spec: { requiresApproval: true, errorMessageLimit: 300 } }
""",
    "pay": """\
Tool
metadata: { name: pay }
spec: { entry: ./tools/pay.py, exports: [{ name: run, timeoutSeconds: 5 }] }
""",
    "audit": """\
Tool
metadata: { name: audit }
spec:
  entry: ./tools/audit.py
  isolation: process
  requiresApproval: true
  sandbox: strict
  rateLimit: 2/s
  exports: [{ name: run, description: Audits. }]
""",
    "notes": "Tool\nmetadata: { name: notes }\nspec: { entry: ./tools/notes.py, exports: [{ name: run }] }\n",
    "app": """\
OAuthApp
metadata: { name: chat }
spec:
  provider: chat
  flow: authorizationCode
  subjectMode: user
  client: { clientId: { value: id }, clientSecret: { value: secret } }
  endpoints: { authorizationUrl: "https://chat.example/a", tokenUrl: "https://chat.example/t" }
  scopes: ["read"]
  redirect: { callbackPath: /oauth/chat }
""",
    "model": """\
Model
metadata: { name: bright }
spec: { provider: openai, model: any, rateLimit: 9/m, apiKey: { valueFrom: { env: KEY } } }
""",
}
FILES = {
    **{f"tools/{name}.py": HANDLERS for name in ("pay", "audit", "notes", "memo", "save")},
    "tools/coder.py": "def handle(ctx, event):\n    return None\n",
}


@pytest.fixture(autouse=True)
def sandbox_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that wants a sandbox is refused where there is none; these tests are about other rules."""
    monkeypatch.setattr(sandbox, "fault", lambda: None)


BASH = "    - selector: { kind: Tool, name: bash }\n"
OVERRIDES = "      overrides: { spec: { requiresApproval: true, errorMessageLimit: 300 } }\n"


@pytest.fixture(autouse=True)
def bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sandboxes work, for the bundle has one: no program runs in it here."""
    monkeypatch.setattr(sandbox, "fault", lambda: None)


def text(**changed: str) -> str:
    """Return the bundle with other parts, or more of them; an empty one is left out."""
    parts = filter(None, {**PARTS, **changed}.values())
    return "---\n".join(part if part.startswith(OLDER_HEAD) else HEAD + part for part in parts)


def agent(name: str, tools: str) -> str:
    return f"Agent\nmetadata: {{ name: {name} }}\nspec:\n  tools:\n{tools}"


def use(tool: str, **overrides: Any) -> str:
    """Return an item of an Agent's tools, with its overrides."""
    return BASH.replace("bash", tool) + f"      overrides: {json.dumps({'spec': overrides})}\n"


def edited(part: str, old: str, new: str) -> dict[str, str]:
    assert old in PARTS[part]
    return {part: PARTS[part].replace(old, new)}


def commit(
    bundle: GitBundle, place: Path, files: dict[str, str], removed: tuple[str, ...] = ()
) -> CommitResult:
    rules = ChangesetRules.of(load_bundle(bundle.folder), "coder")
    principal, changesets = Principal(place / "work", rules, "coder", "issue-42"), bundle.changesets()
    opened = changesets.open(principal)
    for path in removed:
        Path(opened.workdir, path).unlink()
    for path, content in files.items():
        file = Path(opened.workdir, path)
        file.parent.mkdir(exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return changesets.commit(opened.changeset_id, principal=principal)


def bank(place: Path, **changed: str) -> GitBundle:
    return make_bundle(place / "repo", files={"goondan.yaml": text(**changed), **FILES})


@dataclass(frozen=True, slots=True)
class Revision:
    """The files of one revision, in no repository: commits would take most of the time."""

    files: Mapping[str, str]

    def write_files(self, _tree: str, folder: Path) -> None:
        write(folder, self.files)


@cache
def checked(yaml: str) -> Checked:
    """Check a bundle as a commit does before it imports anything."""
    repository: Any = Revision({"goondan.yaml": yaml, **FILES})
    return BundleCheck(repository).check("", import_entries=False)


def widened(before: dict[str, str], change: dict[str, str]) -> tuple[str, ...]:
    """Return the resources in which a change of a bundle is one of permissions."""
    after = checked(text(**{**before, **change}))
    assert after.errors == []
    return changed_permissions(checked(text(**before)), after, "coder", swarm=None)


WIDENED = {
    "another server for a key": edited("model", "model: any,", "model: any, baseUrl: 'https://x.example',"),
    "another rate of a model": edited("model", "9/m", "99/m"),
    "no model": {"model": ""},
    "a second model": {"second": PARTS["model"].replace("bright", "brighter")},
    "no approvals": edited("swarm", '["pay__*"]', "[]"),
    "no policy for tool calls": edited("swarm", '    toolCalls: { approval: ["pay__*"] }\n', ""),
    "any tool of the registry": edited("swarm", '["pay__*"]', '["pay__*"], allow: registry'),
    "more steps": edited("swarm", "maxStepsPerTurn: 8", "maxStepsPerTurn: 800"),
    "more files": edited("swarm", '["**/*.yaml", "tools/**"]', '["**/*.yaml", "**/*.py"]'),
    "leave to change the policy": edited(
        "swarm", "enabled: true,", "enabled: true, allowPolicyChanges: true,"
    ),
    "another life of instances": edited(
        "swarm", "maxStepsPerTurn: 8", "maxStepsPerTurn: 8\n    lifecycle: { ttlSeconds: 9 }"
    ),
    "a second swarm": {"second": PARTS["swarm"].replace("den", "default").replace("8", "9")},
    "a second swarm like the first": {"second": PARTS["swarm"].replace("den", "other")},
    "no swarm": {"swarm": ""},
    "another name of the swarm": edited("swarm", "name: den", "name: lair"),
    "an older swarm": {
        "swarm": OLDER_HEAD + PARTS["swarm"].replace("entryAgent", "entrypoint").replace('["pay__*"]', "[]")
    },
    "no approval by the tool": edited("audit", "  requiresApproval: true\n", ""),
    "no approval by the export": edited("audit", "name: run,", "name: run, requiresApproval: false,"),
    "no isolation": edited("audit", "  isolation: process\n", ""),
    "variables for a tool": edited("pay", "./tools/pay.py,", "./tools/pay.py, env: [SHOP_TOKEN],"),
    "variables for an agent": edited("agent", "workdir: shared", "env: [SHOP_TOKEN]"),
    "variables by an override": {"agent": PARTS["agent"] + use("notes", env=["SHOP_TOKEN"])},
    "variables for a new agent's tool": {"second": agent("second", use("notes", env=["SHOP_TOKEN"]))},
    "no sandbox": edited("audit", "  sandbox: strict\n", ""),
    "a laxer sandbox": edited("audit", "sandbox: strict", "sandbox: true"),
    "more calls a second": edited("audit", "2/s", "200/s"),
    "more time": edited("pay", "timeoutSeconds: 5", "timeoutSeconds: 50"),
    "a second run after a crash": edited("pay", "timeoutSeconds: 5", "timeoutSeconds: 5, idempotent: true"),
    "an older tool": {
        "notes": OLDER_HEAD
        + PARTS["notes"].replace("spec: {", "spec: { runtime: python,").replace("name: run", "name: run")
    },
    "another name of a function that waits": {
        **edited("pay", "name: pay", "name: spend"),
        **edited("agent", "Tool/pay", "Tool/spend"),
    },
    "another tool of the code that waits": {
        "second": PARTS["audit"]
        .replace("name: audit", "name: check")
        .replace("  requiresApproval: true\n", "")
    },
    "the code that waits under a tool that does not": edited("notes", "notes.py", "audit.py"),
    "a new export with rules of its own": edited(
        "audit", "[{ name: run", "[{ name: fast, requiresApproval: false }, { name: run"
    ),
    "the tool that waits is gone": {**edited("agent", "    - Tool/pay\n", ""), "pay": ""},
    "an override is gone": edited("agent", OVERRIDES, ""),
    "an override allows more": edited("agent", "requiresApproval: true", "requiresApproval: false"),
    "what an override protects is gone": edited("agent", BASH + OVERRIDES, ""),
    "an override of another tool": edited(
        "agent",
        "    - Tool/audit\n",
        BASH.replace("bash", "audit") + "      overrides: { spec: { requiresApproval: false } }\n",
    ),
    "a new agent with an override": {
        "second": PARTS["agent"]
        .replace("coder", "second", 1)
        .replace("requiresApproval: true", "timeoutSeconds: 9999")
    },
    "a second agent without the override": {"second": agent("second", "    - Tool/bash\n")},
    "the agent under another name, without the override": {
        "agent": agent("second", "    - Tool/bash\n"),
        "swarm": PARTS["swarm"].replace("Agent/coder", "Agent/second"),
    },
    "the agent that an override restricts is gone": {
        "agent": agent("second", "    - Tool/pay\n"),
        "swarm": PARTS["swarm"].replace("Agent/coder", "Agent/second"),
    },
    "no required tool": edited("agent", "  requiredTools: [audit__run]\n", ""),
    "another required tool": edited("agent", "audit__run", "pay__run"),
    "a workdir of its own": edited("agent", "workdir: shared", "workdir: local"),
    "another server of tokens": edited("app", "https://chat.example/t", "https://evil.example/t"),
    "no app": {"app": ""},
}


@pytest.mark.parametrize("change", WIDENED.values(), ids=WIDENED)
def test_change_that_weakens_protection_is_found(change: dict[str, str]) -> None:
    assert widened({}, change)


def test_commit_that_weakens_protection_is_refused(tmp_path: Path) -> None:
    bundle = bank(tmp_path)
    before = bundle.head

    result = commit(bundle, tmp_path, {"goondan.yaml": text(**WIDENED["no approvals"])})

    assert result.error is not None, result
    assert (result.status, result.error.code) == ("rejected", "POLICY_VIOLATION"), result.error
    assert (result.error.violated_files, bundle.head) == (("goondan.yaml",), before)
    assert "allowPolicyChanges" in result.error.message


MEMO = PARTS["notes"].replace("notes", "memo")
#: three Agents that restrict one function in different ways
RESTRICTED = {
    "memo": MEMO,
    "agent": PARTS["agent"] + use("notes", requiresApproval=True, rateLimit="100/m", timeoutSeconds=90),
    "slow": agent("slow", use("notes", rateLimit="1/s", timeoutSeconds=20, maxConcurrency=2)),
    "plain": agent("plain", "    - Tool/notes\n    - Tool/memo\n"),
}
STRICTEST = {"requiresApproval": True, "rateLimit": "1/s", "timeoutSeconds": 20, "maxConcurrency": 2}
AROUND = {
    "a new agent as the tool is declared": {"new": agent("new", "    - Tool/notes\n")},
    "a new agent that repeats the first one's rules": {
        "new": agent("new", use("notes", requiresApproval=True, rateLimit="100/m", timeoutSeconds=90))
    },
    "a new agent without one of the rules": {
        "new": agent("new", use("notes", requiresApproval=True, rateLimit="1/s", timeoutSeconds=20))
    },
    "a new agent with a rule of its own": {"new": agent("new", use("notes", **STRICTEST, idempotent=True))},
    "a new agent with the code under another name": {
        "second": PARTS["notes"].replace("name: notes", "name: copy"),
        "new": agent("new", "    - Tool/copy\n"),
    },
    "the code behind another tool of an agent": {"memo": MEMO.replace("memo.py", "notes.py")},
}


@pytest.mark.parametrize("change", AROUND.values(), ids=AROUND)
def test_earlier_agents_overrides_bind_functions_new_to_agent(change: dict[str, str]) -> None:
    assert widened(RESTRICTED, change)


WITHIN = {
    "a new agent with the strictest rules": {"new": agent("new", use("notes", **STRICTEST))},
    "a new agent with another function": {"new": agent("new", "    - Tool/memo\n")},
    "other code of a tool that several agents have": {"notes": PARTS["notes"].replace("notes.py", "save.py")},
    "an agent that restricts nothing is gone": {"plain": ""},
    "an override under another agent's name": {
        "slow": "",
        "agent": PARTS["agent"],
        "new": agent("new", use("notes", **STRICTEST)),
    },
}


@pytest.mark.parametrize("change", WITHIN.values(), ids=WITHIN)
def test_rules_as_strict_as_earlier_agents_are_allowed(change: dict[str, str]) -> None:
    assert widened(RESTRICTED, change) == ()


def test_commit_as_strict_as_earlier_agents_succeeds(tmp_path: Path) -> None:
    change = text(**{**RESTRICTED, **WITHIN["an override under another agent's name"]})

    result = commit(bank(tmp_path, **RESTRICTED), tmp_path, {"goondan.yaml": change})

    assert result.status == "ok", result.error


def test_moved_resource_keeps_its_protection(tmp_path: Path) -> None:
    bundle = bank(tmp_path)
    swarm = HEAD + PARTS["swarm"]

    moved = commit(bundle, tmp_path, {"goondan.yaml": text(swarm=""), "resources/swarm.yaml": swarm})
    changed = commit(bundle, tmp_path, {"resources/swarm.yaml": swarm.replace('["pay__*"]', "[]")})
    back = text(swarm=PARTS["swarm"].replace('["pay__*"]', "[]"))
    undone = commit(bundle, tmp_path, {"goondan.yaml": back}, removed=("resources/swarm.yaml",))
    doubled = commit(bundle, tmp_path, {"goondan.yaml": back})

    assert moved.status == "ok", moved.error
    codes = [result.error and result.error.code for result in (changed, undone, doubled)]
    assert codes == ["POLICY_VIOLATION", "POLICY_VIOLATION", "BUNDLE_INVALID"]


HARMLESS = {
    "another order and other words": {
        "swarm": PARTS["swarm"].replace(
            "maxStepsPerTurn: 8\n", "lifecycle: {}\n    maxStepsPerTurn: 8 # eight\n"
        )
    },
    "a description": edited("audit", "Audits.", "Audits all of it."),
    "a new export with the rules of its tool": edited(
        "audit", "[{ name: run", "[{ name: again }, { name: run"
    ),
    "a new tool with rules of its own": {
        "second": PARTS["pay"].replace("pay", "save").replace("timeoutSeconds: 5", "timeoutSeconds: 60")
    },
    "another error limit": edited("agent", "errorMessageLimit: 300", "errorMessageLimit: 900"),
    "a tool more": edited("agent", "    - Tool/pay\n", "    - Tool/pay\n    - Tool/notes\n    - Tool/wait\n"),
    "a tool without protection is gone": {"notes": ""},
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_agent_or_tool_behaviour_can_still_be_changed(change: dict[str, str]) -> None:
    assert widened({}, change) == ()


def test_commit_with_new_export_and_its_code_succeeds(tmp_path: Path) -> None:
    again = {"tools/audit.py": HANDLERS.replace('"run": run', '"run": run, "again": run')}
    change = text(**HARMLESS["a new export with the rules of its tool"])

    result = commit(bank(tmp_path), tmp_path, {"goondan.yaml": change, **again})

    assert result.status == "ok", result.error


def test_swarms_last_commit_decides_about_policy_changes(tmp_path: Path) -> None:
    leave = PARTS["swarm"].replace("enabled: true,", "enabled: true, allowPolicyChanges: true,")
    bundle = bank(tmp_path, swarm=leave)
    lax = leave.replace('["pay__*"]', "[]")

    allowed = commit(bundle, tmp_path, {"goondan.yaml": text(swarm=lax)})
    rules = ChangesetRules.of(load_bundle(bundle.folder), "coder")
    principal = Principal(tmp_path / "work", rules, "coder", "issue-42")
    opened = bundle.changesets().open(principal)
    bundle.commit({"goondan.yaml": text(swarm=lax.replace("allowPolicyChanges: true,", ""))}, "Forbid it")
    more = lax.replace("maxStepsPerTurn: 8", "maxStepsPerTurn: 80")
    Path(opened.workdir, "goondan.yaml").write_text(text(swarm=more), encoding="utf-8")
    late = bundle.changesets().commit(opened.changeset_id, principal=principal)

    assert allowed.status == "ok", allowed.error
    assert late.error is not None
    assert late.error.code == "POLICY_VIOLATION", late.error
    assert "maxStepsPerTurn: 8\n" in bundle.committed("goondan.yaml")
