"""Which bundle and which agents a command is about."""

from pathlib import Path

import pytest

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.selection import chosen_agents, chosen_bundle
from goondan_tasks.errors import AgentNotFoundError, ConfigError

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"


def test_the_bundle_that_is_set_is_chosen_with_its_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)

    assert chosen_bundle(Settings.load(bundle="coding-swarm")) == EXAMPLE


def test_without_one_it_is_this_directory_if_it_holds_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="No bundle is set"):
        chosen_bundle(Settings.load())

    (tmp_path / "goondan.yaml").touch()
    assert chosen_bundle(Settings.load()) == tmp_path


def test_without_names_every_agent_of_the_swarm_is_chosen() -> None:
    assert chosen_agents(load_bundle(EXAMPLE), None, ()) == ("planner", "coder", "reviewer")


def test_an_agent_that_is_named_twice_is_chosen_once() -> None:
    assert chosen_agents(load_bundle(EXAMPLE), None, ["coder", "planner", "coder"]) == ("coder", "planner")


def test_an_unknown_agent_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(AgentNotFoundError) as refused:
        chosen_agents(load_bundle(EXAMPLE), None, ["coder", "plnner"])

    assert refused.value.message == "Swarm 'coding' has no agent 'plnner'."
    assert refused.value.suggestion == "Did you mean 'planner'? Its agents are: planner, coder, reviewer."
