"""The index of a bundle: Swarms, agents and the workspace."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.errors import AgentNotFoundError, ConfigError
from tests.unit.goondan_tasks.bundle.writing import TOOL, write

PACKAGE = "apiVersion: goondan.ai/v1\nkind: Package\nmetadata: { name: '@me/desk' }\n"


def agents(*names: str) -> list[str]:
    return [f"apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: {{ name: {name} }}\n" for name in names]


def swarm(name: str, *members: str) -> str:
    refs = ", ".join(f"Agent/{member}" for member in members)
    spec = f"spec: {{ entryAgent: Agent/{members[0]}, agents: [{refs}] }}\n"
    return f"apiVersion: goondan.ai/v1\nkind: Swarm\nmetadata: {{ name: {name} }}\n{spec}"


def load(tmp_path: Path, *documents: str) -> Bundle:
    return load_bundle(write(tmp_path, {"goondan.yaml": "---\n".join([*documents, TOOL])}))


def test_swarm_is_found_by_name(tmp_path: Path) -> None:
    bundle = load(tmp_path, *agents("a", "b"), swarm("one", "a"), swarm("two", "b", "a"))

    assert bundle.swarm("two").spec.entry_agent.name == "b"
    assert bundle.agent_names("two") == ("b", "a")


def test_without_name_only_swarm_is_meant(tmp_path: Path) -> None:
    bundle = load(tmp_path, *agents("a", "b"), swarm("one", "a"))

    assert bundle.swarm().name == "one"
    assert bundle.agent_names() == ("a",)


def test_default_swarm_is_used_among_several(tmp_path: Path) -> None:
    bundle = load(tmp_path, *agents("a", "b"), swarm("one", "a"), swarm("default", "b"))

    assert bundle.agent_names() == ("b",)


@pytest.mark.parametrize("swarms", [[], [swarm("one", "a"), swarm("two", "b")]])
def test_otherwise_all_agents_are_one_swarm(tmp_path: Path, swarms: list[str]) -> None:
    bundle = load(tmp_path, *agents("b", "a"), *swarms)

    assert bundle.agent_names() == ("b", "a")
    assert bundle.swarm().name == "default"
    assert bundle.swarm().spec.entry_agent.name == "b"
    assert bundle.swarm().spec.policy.max_steps_per_turn == 32
    assert bundle.swarm().spec.policy.tool_calls.allow == "catalog"


def test_package_names_workspace(tmp_path: Path) -> None:
    bundle = load(tmp_path, PACKAGE, *agents("a"), swarm("one", "a"))

    assert bundle.workspace_name() == "@me/desk"
    assert bundle.package is not None


@pytest.mark.parametrize(("name", "suggestion"), [("onne", "Did you mean 'one'?"), ("", "Known are: one.")])
def test_unknown_swarm_is_refused(tmp_path: Path, name: str, suggestion: str) -> None:
    bundle = load(tmp_path, *agents("a"), swarm("one", "a"))

    with pytest.raises(ConfigError) as refusal:
        bundle.swarm(name)

    assert refusal.value.suggestion == suggestion


def test_bundle_without_agents_has_no_swarm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no agents"):
        load(tmp_path).agent_names()


def test_unknown_agent_is_refused(tmp_path: Path) -> None:
    bundle = load(tmp_path, *agents("coder"))

    with pytest.raises(AgentNotFoundError, match="no agent 'codr'") as refusal:
        bundle.bound_tools("codr")

    assert refusal.value.suggestion == "Did you mean 'coder'?"


def test_loaded_bundle_cannot_be_changed(tmp_path: Path) -> None:
    bundle = load(tmp_path, *agents("coder"))

    with pytest.raises(TypeError):
        bundle.tools["x"] = bundle.tools["echo"]  # type: ignore[index]
    with pytest.raises(TypeError):
        bundle.bound_tools("coder")["x"] = bundle.all_tools()["echo__run"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        bundle.root = tmp_path  # type: ignore[misc]


@pytest.mark.requirement("error.message-limit-default")
def test_errors_are_cut_at_1000_characters_by_default(tmp_path: Path) -> None:
    assert load(tmp_path).tools["echo"].spec.error_message_limit == 1000
