"""Which files a policy allows."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.policy import ChangesetRules, is_text
from tests.unit.goondan_tasks.bundle.writing import TOOL, found_in, write

SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {{ name: default }}
spec: {{ entryAgent: Agent/coder, agents: [Agent/coder], policy: {{ {policy} }} }}
"""
AGENT = """\
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: coder }}
spec: {{ {spec} }}
"""


def rules(folder: Path, policy: str, spec: str = "") -> ChangesetRules:
    text = TOOL + AGENT.format(spec=spec) + SWARM.format(policy=policy)
    return ChangesetRules.of(load_bundle(write(folder, {"goondan.yaml": text})), "coder")


def test_changesets_are_off_unless_swarm_says_otherwise(tmp_path: Path) -> None:
    assert not rules(tmp_path, "changesets: { allowed: { files: ['**'] } }").allow("a")


@pytest.mark.parametrize("allowed", ["", ", allowed: {}", ", allowed: { files: [] }"])
def test_empty_list_of_swarm_allows_nothing(tmp_path: Path, allowed: str) -> None:
    found = rules(tmp_path, f"changesets: {{ enabled: true{allowed} }}")

    assert (found.is_enabled, found.allow("a")) == (True, False)


def test_agent_without_list_may_change_what_swarm_allows(tmp_path: Path) -> None:
    found = rules(tmp_path, "changesets: { enabled: true, allowed: { files: ['prompts/**', '*.yaml'] } }")

    assert [found.allow(path) for path in ("prompts/a.md", "goondan.yaml", "echo.py")] == [True, True, False]


def test_swarm_and_agent_must_both_allow_file(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        "changesets: { enabled: true, allowed: { files: ['prompts/**', 'tools/**'] } }",
        "changesets: { allowed: { files: ['prompts/**', '*.yaml'] } }",
    )

    allowed = [found.allow(path) for path in ("prompts/a.md", "tools/a.py", "goondan.yaml")]
    assert allowed == [True, False, False]
    assert found.recommended_files == ("prompts/**", "*.yaml")


@pytest.mark.parametrize("own", ["{}", "{ allowed: {} }", "{ allowed: { files: [] } }"])
def test_empty_list_of_agent_allows_nothing(tmp_path: Path, own: str) -> None:
    policy = "changesets: { enabled: true, allowed: { files: ['**'] } }"

    assert not rules(tmp_path, policy, f"changesets: {own}").allow("a")


@pytest.mark.parametrize("name", ["prompts/größe.md", "prompts/λόγος.md", "prompts/README.TXT", "a/Ünï.png"])
def test_text_named_in_any_alphabet_is_recognized(name: str) -> None:
    assert is_text(name)


def test_agent_cannot_enable_changesets(tmp_path: Path) -> None:
    text = TOOL + AGENT.format(spec="changesets: { enabled: true }")

    [finding] = found_in(write(tmp_path, {"goondan.yaml": text}))
    assert (finding.level, finding.path) == ("error", "spec.changesets.enabled")


def test_policy_changes_need_swarms_leave_in_both_revisions(tmp_path: Path) -> None:
    silent = rules(tmp_path / "silent", "changesets: { enabled: true }")
    allowing = rules(tmp_path / "allowing", "changesets: { enabled: true, allowPolicyChanges: true }")

    assert [one.allows_policy_changes for one in (silent, allowing)] == [False, True]
    assert not allowing.narrowed(silent).allows_policy_changes
    assert not silent.narrowed(allowing).allows_policy_changes


@pytest.mark.parametrize(
    ("spec", "policy", "path"),
    [
        ("changesets: { allowPolicyChanges: true }", "", "spec.changesets.allowPolicyChanges"),
        ("", "changesets: { allowPolicyChanges: 'true' }", "spec.policy.changesets.allowPolicyChanges"),
        ("", "changesets: { allowPolicyChange: true }", "spec.policy.changesets.allowPolicyChange"),
    ],
    ids=["an agent", "a text", "a slip"],
)
def test_policy_change_leave_is_boolean_at_one_place(
    tmp_path: Path, spec: str, policy: str, path: str
) -> None:
    text = TOOL + AGENT.format(spec=spec) + SWARM.format(policy=policy)

    [finding] = found_in(write(tmp_path, {"goondan.yaml": text}))
    assert (finding.level, finding.path) == ("error", path)
