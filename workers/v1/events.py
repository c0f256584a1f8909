"""``ctx.events`` and ``api.events`` of the older version: see :class:`goondan_tasks.v1_api.EventBus`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.messages import JsonObject
from workers.extensions.events import Events


@dataclass(frozen=True, slots=True)
class AgentEventBus:
    """What happens in this process, as far as one agent is concerned."""

    agent: str
    #: whose code listens, for the log
    listener_of: str
    events: Events

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Tell everybody who listens."""
        self.events.emit(self.agent, name, event)

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; return what ends that.

        Raises:
            TypeError: it is no function.
        """
        return self.events.on(self.agent, name, listener, extension=self.listener_of)

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with the next such event only; raises as :meth:`on`."""
        return self.events.on(self.agent, name, listener, extension=self.listener_of, is_once=True)

    def off(self, name: str, listener: Callable[[JsonObject], Any]) -> None:
        """Call ``listener`` no more."""
        self.events.off(self.agent, name, listener)


@dataclass(frozen=True, slots=True)
class RunEventBus(AgentEventBus):
    """The same for one run of a tool: what it has begun to hear ends with it."""

    _ends: list[Callable[[], None]] = field(default_factory=list)

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """See :meth:`AgentEventBus.on`."""
        return self._noted(AgentEventBus.on(self, name, listener))

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """See :meth:`AgentEventBus.once`."""
        return self._noted(AgentEventBus.once(self, name, listener))

    def end(self) -> None:
        """Call no listener any more that the run has named."""
        while self._ends:
            self._ends.pop()()

    def _noted(self, end: Callable[[], None]) -> Callable[[], None]:
        self._ends.append(end)
        return end
