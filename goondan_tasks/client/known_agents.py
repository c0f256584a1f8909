"""A producer's knowledge of the swarm: its agents, the active revision, and errors of Redis."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

from broker_config.confirmation import NotConfirmedError
from broker_config.keys import Keys
from broker_config.refusals import reason_unreachable, remedy_of
from broker_config.settings import Settings, hidden_password
from goondan_tasks.contract.calls import CallDraft
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    BrokerUnreachableError,
    ConfigError,
    UnconfirmedError,
)
from goondan_tasks.contract.names import SEPARATOR, SYSTEM_TOOL
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.table_rows import name_keys
from goondan_tasks.contract.wording import closest
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry, describe_agents
from goondan_tasks.revisions.active import ActiveRevision

if TYPE_CHECKING:
    from goondan_tasks.bundle import Bundle


def broker_errors(url: str) -> OnError:
    """Turn the errors of the Redis at ``url`` into ours, for the length of a ``with`` block.

    Raises:
        BrokerUnreachableError: it cannot be reached, or refuses a command.
        UnconfirmedError: it has accepted a write, and too few replicas have confirmed it.
        RecordDamagedError: the contents of a key are those of another program.
    """
    return OnError(partial(_as_ours, url))


def _as_ours(url: str, error: BaseException) -> None:
    name_keys((), error)
    if isinstance(error, NotConfirmedError):
        raise UnconfirmedError(f"Redis at {hidden_password(url)} has accepted it, but {error}.") from error
    if isinstance(error, RedisError):
        reason, remedy = reason_unreachable(url, error), remedy_of(error, url)
        raise BrokerUnreachableError(reason, suggestion=remedy) from error


_SYSTEM_TOOLS = f"{SYSTEM_TOOL}{SEPARATOR}"

#: how long a ref is cached, and how long the answer that no worker follows revisions
GOOD_SECONDS = 0.2
NONE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """The agents of a producer's bundle, by name."""

    by_name: Mapping[str, AgentRecord] = field(default_factory=dict)
    #: whether their workspace is named after the bundle's folder, which may differ on the workers' machines
    is_of_folder: bool = False
    #: why the bundle could not be loaded
    fault: str = ""

    @classmethod
    def of(cls, bundle: "Bundle", settings: Settings) -> "OwnAgents":
        """Describe the agents of a bundle.

        Raises:
            ConfigError: the bundle has no such swarm.
        """
        records = describe_agents(bundle, settings.swarm, settings.workspace)
        is_of_folder = bundle.package is None and settings.workspace is None
        return cls({record.name: record for record in records}, is_of_folder)

    @classmethod
    def load(cls, path: Path, settings: Settings, warn: Callable[[str], object]) -> "OwnAgents":
        """Load the bundle at ``path``; if that fails, ``warn``, and return none.

        A fault in YAML must not keep anybody from looking at calls that run, or from stopping them.
        """
        from goondan_tasks.bundle import load_bundle  # reading YAML takes a fifth of a client's start

        try:
            return cls.of(load_bundle(path), settings)
        except ConfigError as error:
            fault = f"The bundle {path} cannot be loaded: {error}"
            warn(f"{fault}\nThe agents are those that workers have announced.")
            return cls(fault=fault)


class KnownAgents:
    """The agents of a bundle, if there is one, and those that workers have announced."""

    def __init__(self, agent_registry: AgentRegistry, own: Callable[[], OwnAgents] = OwnAgents) -> None:
        """Begin without agents; ``own`` is called once, when an agent or a list of all is first needed."""
        self._agent_registry = agent_registry
        self._load = own
        self._loading = threading.Lock()
        self._own: OwnAgents | None = None
        self._known: dict[str, AgentRecord] = {}

    def all(self) -> dict[str, AgentRecord]:
        """Return every agent by name.

        The bundle's description takes precedence over the announced one, except for the tools of extensions
        (only workers know those), and for a workspace that is named after the bundle's folder.
        """
        own, announced = self._own_agents(), self._agent_registry.agents()
        described = {
            name: _as_announced(record, announced.get(name), is_of_folder=own.is_of_folder)
            for name, record in own.by_name.items()
        }
        self._known = {**announced, **described}
        return dict(self._known)

    def current(self, name: str) -> AgentRecord:
        """Return one agent as it is currently announced.

        Raises:
            AgentNotFoundError: no such agent.
        """
        agents = self.all()
        if name not in agents:
            raise _not_found(name, agents, self._own_agents().fault)
        return agents[name]

    def require(self, name: str) -> AgentRecord:
        """Return one agent; the announced ones are read again only if the name is unknown.

        Raises:
            AgentNotFoundError: no such agent.
        """
        self._own_agents()
        return self._known.get(name) or self.current(name)

    def _own_agents(self) -> OwnAgents:
        if self._own is None:
            with self._loading:
                if self._own is None:
                    own = self._load()
                    self._known = {} if own.is_of_folder else dict(own.by_name)
                    self._own = own
        return self._own


def _as_announced(record: AgentRecord, announced: AgentRecord | None, *, is_of_folder: bool) -> AgentRecord:
    record = record.with_dynamic_tools(announced)
    if announced is None or not is_of_folder:
        return record
    return record.model_copy(update={"workspace": announced.workspace})


def _not_found(name: str, known: Iterable[str], fault: str) -> AgentNotFoundError:
    names = list(known)
    meant = closest(name, names)
    hint = f"; did you mean {meant!r}?" if meant else "."
    listed = ", ".join(names) or "none: no bundle is set and no worker has announced any"
    return AgentNotFoundError(f"No agent {name!r}{hint} Known agents: {listed}. {fault}".rstrip())


@dataclass(slots=True)
class ActiveRefs:
    """The active revision of each workspace's bundle, which calls name."""

    redis: Redis
    keys: Keys
    clock: Callable[[], float] = time.monotonic
    #: workspace -> ref, and until when it is cached
    _known: dict[str, tuple[str | None, float]] = field(default_factory=dict)

    def of(self, workspace: str) -> str | None:
        """Return the ref that is active in a workspace; ``None`` if no worker follows revisions there.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        ref, until = self._known.get(workspace, (None, 0.0))
        now = self.clock()
        if now >= until:
            ref = self._read(workspace)
            self._known[workspace] = ref, now + (NONE_SECONDS if ref is None else GOOD_SECONDS)
        return ref

    def named(self, draft: CallDraft, workspace: str) -> CallDraft:
        """Return a call that names the active revision; raises as :meth:`of`.

        A call of a Step names the Step's revision, or leaves it to the worker. So does one that opens a Step.
        """
        call = draft.call
        is_of_system = call.tool_name.startswith(_SYSTEM_TOOLS)
        if call.bundle_ref is not None or call.step_id is not None or is_of_system:
            return draft
        ref = self.of(workspace)
        return draft if ref is None else draft._replace(call=call.model_copy(update={"bundle_ref": ref}))

    def _read(self, workspace: str) -> str | None:
        try:
            state = ActiveRevision(self.redis, self.keys, workspace).state()
        except ValueError:  # written by a newer version: the workers know which revision is active
            return None
        return None if state is None else state.active
