"""What the table of instances knows of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from broker_config import serializer
from goondan_tasks.agents.homes import Home
from goondan_tasks.messages import iso_time
from goondan_tasks.names import OUTSIDE
from goondan_tasks.runtime_api import SpawnedAgentInfo


class InstanceInfo(SpawnedAgentInfo):
    """An instance of an agent, as ``goondan instances --json`` prints it.

    ``cwd`` is a path from the directory of the workspace's instances, on whatever machine that is.
    """

    last_used_at: str
    workspace: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """An agent's part of an instance. Times are milliseconds, Redis time."""

    agent: str
    created_at: int
    last_used_at: int
    #: the agent that spawned it, and that agent's instance
    owner: tuple[str, str] | None = None
    #: its workdir, if that is not the home's own: a path from the workspace's instances
    cwd: str | None = None
    #: the state root in which a worker has opened it last
    root_id: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """An instance: a home, and the agents that work under its key."""

    home: Home
    #: ``None`` for a home that nobody has used yet
    key: str | None = None
    workspace: str = ""
    tenants: tuple[Tenant, ...] = ()
    #: other instances that were spawned with a workdir in this home: their homes and agents
    guests: tuple[tuple[Home, str], ...] = ()
    #: tokens of the deletions that hold the home, or were left half-done
    tokens: frozenset[str] = field(default=frozenset())

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents, in alphabetical order."""
        return tuple(tenant.agent for tenant in self.tenants)

    @property
    def last_used_at(self) -> int:
        """When any of its agents used it last; 0 if none did."""
        return max((tenant.last_used_at for tenant in self.tenants), default=0)

    def tenant(self, agent: str) -> Tenant | None:
        """Return an agent's part."""
        return next((tenant for tenant in self.tenants if tenant.agent == agent), None)

    def infos(self) -> list[InstanceInfo]:
        """Describe the instance, once for each of its agents; what no agent has spawned is the client's."""
        unowned = (OUTSIDE, self.key or "")
        return [
            InstanceInfo(
                target=tenant.agent,
                instance_key=self.key or "",
                owner_agent=(tenant.owner or unowned)[0],
                owner_instance_key=(tenant.owner or unowned)[1],
                created_at=iso_time(tenant.created_at),
                last_used_at=iso_time(tenant.last_used_at),
                cwd=tenant.cwd,
                workspace=self.workspace,
            )
            for tenant in self.tenants
        ]

    @classmethod
    def from_redis(cls, home: Home, fields: Mapping[bytes, bytes]) -> Self:
        """Read the hash of one instance (``home.lua`` says what is in it)."""
        texts = {name.decode(): value.decode() for name, value in fields.items()}
        parts = [name.partition(":") for name in texts]
        agents = sorted(agent for field, _, agent in parts if field == "created")
        tokens = texts.get("aside", "").split() + texts.get("retiring", "").split()[:1]
        return cls(
            home=home,
            key=texts.get("key"),
            workspace=texts.get("workspace", ""),
            tenants=tuple(_tenant(agent, texts) for agent in agents),
            guests=tuple(sorted(_guest(home, name) for field, _, name in parts if field == "guest")),
            tokens=frozenset(tokens),
        )


def _tenant(agent: str, texts: Mapping[str, str]) -> Tenant:
    owner = texts.get(f"owner:{agent}")
    return Tenant(
        agent=agent,
        created_at=int(texts[f"created:{agent}"]),
        last_used_at=int(texts.get(f"used:{agent}", 0)),
        owner=None if owner is None else tuple(serializer.decode(owner)),
        cwd=texts.get(f"cwd:{agent}"),
        root_id=texts.get(f"root:{agent}"),
    )


def _guest(host: Home, text: str) -> tuple[Home, str]:
    name, _, agent = text.rpartition("@")
    return Home(host.workspace, name), agent
