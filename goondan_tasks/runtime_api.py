"""``ctx.runtime``: how a tool or an agent reaches the other agents of its swarm (004, AgentToolRuntime).

In ``async`` code the methods are coroutines; in plain code the same names block, and the place of the
call among those in progress goes to another one meanwhile.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field

from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.messages import WireModel

#: how long a request waits for its answer, unless it says otherwise
REQUEST_TIMEOUT_MS = 60_000

#: an AgentEvent, or what is known of one: ``input``, ``type``, ``instanceKey``, ``metadata``, ``id``
EventLike = AgentEvent | Mapping[str, Any]


class RequestResult(WireModel):
    """The answer to a request; of one with ``async: true``, that it was accepted."""

    #: the identity of the request
    id: str
    event_id: str
    target: str
    response: Any = None
    correlation_id: str
    accepted: bool = True
    is_async: bool = Field(default=False, alias="async")


class SendResult(WireModel):
    """What became of an event that nobody answers.

    It is not ``accepted`` if an event of the same id and another content was given to the instance before:
    that one stands, and this one goes nowhere.
    """

    #: the identity of its handling
    id: str
    event_id: str
    target: str
    accepted: bool
    correlation_id: str | None = None


class SpawnResult(WireModel):
    """The instance that was prepared; ``spawned`` is true for whoever made it."""

    target: str
    instance_key: str
    spawned: bool
    cwd: str | None = None


class SpawnedAgentInfo(WireModel):
    """An instance of an agent, and who made it: ``client``, under the instance's own key, if no agent did."""

    target: str
    instance_key: str
    owner_agent: str
    owner_instance_key: str
    created_at: str
    cwd: str | None = None


class ListResult(WireModel):
    """Instances."""

    agents: tuple[SpawnedAgentInfo, ...]


class CatalogResult(WireModel):
    """The agents of the swarm."""

    swarm_name: str
    entry_agent: str
    self_agent: str
    available_agents: tuple[str, ...]
    callable_agents: tuple[str, ...]


class AgentRuntime(Protocol):
    """What ``ctx.runtime`` offers; options are a mapping in the documents' spelling, or keywords."""

    def request(
        self,
        target: str,
        event: EventLike,
        options: Mapping[str, Any] | None = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
    ) -> Any:
        """Ask an agent and wait for its answer, ``timeoutMs`` (60,000) at most; a :class:`RequestResult`.

        With ``async: true`` it returns at once, and the answer comes as an event to the asker's mailbox.

        Raises:
            HandoffError: the agent is unknown, failed, was too slow, or waits for this very request.
        """

    def send(self, target: str, event: EventLike) -> Any:
        """Give an agent an event that it does not answer; a :class:`SendResult`.

        Raises:
            HandoffError: the agent is unknown, or too many agents wait for one another.
        """

    def spawn(
        self,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> Any:
        """Prepare an instance of an agent; a :class:`SpawnResult`. One that exists is used again.

        ``cwd`` is its workdir: a path relative to the asker's workdir, inside the workspace's instances.

        Raises:
            HandoffError: the agent is unknown.
            ToolError: ``cwd`` leads outside.
        """

    def list(self, options: Mapping[str, Any] | None = None, *, include_all: bool = False) -> Any:
        """Return the instances that the asker has spawned, or all of the swarm; a :class:`ListResult`."""

    def catalog(self) -> Any:
        """Return the agents of the swarm; a :class:`CatalogResult`."""
