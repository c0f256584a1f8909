"""The entry files of the agents that a worker serves: loaded before it takes its first event (DESIGN §3)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from goondan_tasks.agent_api import AgentHandler
from goondan_tasks.bundle import Bundle
from goondan_tasks.entry import IMPORT_HINT, EntryError, load_agent_entry
from workers.function_outcome import outcome_within
from workers.importing import IMPORT_SECONDS, Importing, hangs


def load_agent_entries(
    bundle: Bundle, agents: Iterable[str], *, seconds: float = IMPORT_SECONDS
) -> Mapping[str, AgentHandler]:
    """Import the entry of each of these agents that has one, and return their ``handle`` by agent.

    Raises:
        EntryError: a file is missing, is no Python, raises while it is imported, takes longer than
            ``seconds`` for that, or has no usable ``handle``.
        KeyError: the bundle has no such agent.
    """
    entries = {agent: bundle.agents[agent].spec.entry for agent in dict.fromkeys(agents)}
    return MappingProxyType(
        {
            agent: _loaded((bundle.root / entry).resolve(), seconds)
            for agent, entry in entries.items()
            if entry
        }
    )


def _loaded(path: Path, seconds: float) -> AgentHandler:
    outcome = outcome_within(seconds, lambda: _imported(path))
    if outcome is None:
        raise EntryError(path, hangs(seconds), IMPORT_HINT)
    return outcome.get()


def _imported(path: Path) -> AgentHandler:
    with Importing(path):
        return load_agent_entry(path)
