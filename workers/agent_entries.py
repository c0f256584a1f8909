"""The entry files of the agents that a worker serves: loaded before it takes its first event (DESIGN §3)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from goondan_tasks.agent_api import AgentHandler
from goondan_tasks.bundle import Bundle
from goondan_tasks.entry import load_agent_entry
from workers.importing import imported


def load_agent_entries(bundle: Bundle, agents: Iterable[str]) -> Mapping[str, AgentHandler]:
    """Import the entry of each of these agents that has one, and return their ``handle`` by agent.

    Raises:
        EntryError: a file is missing, is no Python, cannot be imported in time, or has no usable ``handle``.
        KeyError: the bundle has no such agent.
    """
    entries = {agent: bundle.agents[agent].spec.entry for agent in dict.fromkeys(agents)}
    return MappingProxyType(
        {agent: _loaded((bundle.root / entry).resolve()) for agent, entry in entries.items() if entry}
    )


def _loaded(path: Path) -> AgentHandler:
    return imported(path, lambda: load_agent_entry(path))
