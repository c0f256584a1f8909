"""What ``register`` of an older extension is called with: :class:`goondan_tasks.v1_api.V1ExtensionApi`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle.resources import ExtensionResource
from goondan_tasks.extension_api import State
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import Logger
from workers.extensions.pipelines import Pipelines
from workers.extensions.whose import Whose
from workers.v1.events import AgentEventBus
from workers.v1.extension_tools import V1Tools
from workers.v1.memory import Memory
from workers.v1.oauth import TokenDesk
from workers.v1.swarm_bundle import V1SwarmBundle


@dataclass(frozen=True, slots=True)
class V1Pipelines:
    """``api.pipelines``."""

    whose: Whose
    pipelines: Pipelines

    def mutate(
        self, point: str, function: Callable[[Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Pass the context of ``point`` through ``function``.

        Raises:
            ValueError: there is no such point here.
            TypeError: it is no function of ``(ctx)``, or its priority no whole number.
        """
        whose = self.whose
        self.pipelines.v1.mutate(
            whose.agent, point, function, extension=whose.extension, priority=priority, name=id
        )

    def wrap(
        self, point: str, function: Callable[[Any, Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Put ``function(ctx, next)`` around ``toolCall.exec``; raises as :meth:`mutate`."""
        whose = self.whose
        self.pipelines.wrap(
            whose.agent, point, function, extension=whose.extension, priority=priority, name=id
        )


@dataclass(frozen=True, slots=True)
class V1WorkerApi:
    """The api of one older extension of one agent."""

    extension: ExtensionResource
    agent_name: str
    pipelines: V1Pipelines
    tools: V1Tools
    events: AgentEventBus
    swarm_bundle: V1SwarmBundle
    oauth: TokenDesk
    instance: Memory
    logger: Logger

    @property
    def state(self) -> State:
        """What the extension remembers, key by key."""
        return self.instance.state

    def get_state(self) -> Any:
        """Return what :meth:`set_state` kept for the running instance; see :meth:`Memory.get_state`."""
        return self.instance.get_state()

    def set_state(self, state: JsonObject) -> Any:
        """Keep an object for the running instance; see :meth:`Memory.set_state`."""
        return self.instance.set_state(state)
