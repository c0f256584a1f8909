"""Which agents a producer may call: those of its bundle, and those that workers have announced."""

from collections.abc import Iterable

from goondan_tasks.errors import AgentNotFoundError
from goondan_tasks.roster import AgentRecord, Roster
from goondan_tasks.wording import closest


class KnownAgents:
    """The agents of a bundle, if there is one, and of the roster."""

    def __init__(self, roster: Roster, own: Iterable[AgentRecord]) -> None:
        self._roster = roster
        self._own = {record.name: record for record in own}
        self._announced: dict[str, AgentRecord] = {}

    def all(self) -> dict[str, AgentRecord]:
        """Return every agent by name; where both know one, the bundle's word counts.

        But for the tools of extensions: only workers know those.
        """
        self._announced = announced = self._roster.agents()
        own = {name: record.with_dynamic_tools(announced.get(name)) for name, record in self._own.items()}
        return {**announced, **own}

    def current(self, name: str) -> AgentRecord:
        """Return one agent as it is announced now.

        Raises:
            AgentNotFoundError: no such agent.
        """
        agents = self.all()
        if name not in agents:
            raise _not_found(name, agents)
        return agents[name]

    def require(self, name: str) -> AgentRecord:
        """Return one agent; the roster is read again only for a name not heard of yet.

        Raises:
            AgentNotFoundError: no such agent.
        """
        record = self._own.get(name) or self._announced.get(name)
        if record is not None:
            return record
        return self.current(name)


def _not_found(name: str, known: Iterable[str]) -> AgentNotFoundError:
    names = list(known)
    meant = closest(name, names)
    hint = f"; did you mean {meant!r}?" if meant else "."
    listed = ", ".join(names) or "none: no bundle is set and no worker has announced any"
    return AgentNotFoundError(f"No agent {name!r}{hint} Known agents: {listed}.")
