"""The events of an agent as extensions and tools of the older version see them (002 §11.2)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.contract.messages import JsonObject
from workers.extensions.events import EventListeners


@dataclass(frozen=True, slots=True)
class AgentEventBus:
    """``api.events``: the events of one agent in this process; see :class:`goondan_tasks.v1_api.EventBus`."""

    agent: str
    #: the extension or tool that listens, for the log
    listener_of: str
    events: EventListeners

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        self.events.emit(self.agent, name, event)

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        return self._track(self.events.on(self.agent, name, listener, extension=self.listener_of))

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        end = self.events.on(self.agent, name, listener, extension=self.listener_of, is_once=True)
        return self._track(end)

    def off(self, name: str, listener: Callable[[JsonObject], Any]) -> None:
        self.events.off(self.agent, name, listener)

    def _track(self, end: Callable[[], None]) -> Callable[[], None]:
        return end


@dataclass(frozen=True, slots=True)
class RunEventBus(AgentEventBus):
    """``ctx.events``: the event bus of one run of a tool, whose listeners are removed when it ends."""

    _ends: list[Callable[[], None]] = field(default_factory=list)

    def end(self) -> None:
        while self._ends:
            self._ends.pop()()

    def _track(self, end: Callable[[], None]) -> Callable[[], None]:
        self._ends.append(end)
        return end
