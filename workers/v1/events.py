"""``ctx.events`` and ``api.events`` of the older version: see :class:`goondan_tasks.v1_api.EventBus`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
