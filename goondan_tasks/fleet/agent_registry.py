"""The agents and workers of a namespace in Redis, and requests to drain.

Workers write the agents, so that a producer without the bundle knows them and their catalogs. A request to
drain is a key in Redis that each worker reads, so that not even a reconnecting worker misses it. The
request has a time, and workers that started later ignore it (DESIGN §4).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Self, cast

from pydantic import Field, field_validator, model_validator
from redis import Redis
from redis.client import Pipeline

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from broker_config.process_identity import this_process
from goondan_tasks.contract.messages import JsonObject, Versioned, WireModel
from goondan_tasks.contract.table_rows import naming, read_row
from goondan_tasks.contract.wording import member

if TYPE_CHECKING:
    from goondan_tasks.bundle import Bundle

#: how long the table of agents is kept after the last heartbeat of any worker
AGENTS_TTL_SECONDS = 7 * 86_400

#: how long a request to drain is kept; a worker that cannot reach Redis for longer misses it
SHUTDOWN_TTL_SECONDS = 600


class AgentRecord(WireModel):
    """An agent as its workers describe it. ``catalog`` holds ToolCatalogItems (003 §11)."""

    name: str
    swarm: str
    workspace: str
    catalog: tuple[JsonObject, ...] = ()
    #: the agent that gets work from outside
    entry_agent: str = ""
    #: whether its workers handle its events (``spec.entry`` or ``modelConfig``)
    has_entry: bool = False
    #: whether an event may be handled again after its worker was lost
    idempotent: bool = False

    @field_validator("catalog")
    @classmethod
    def _has_names(cls, catalog: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        if not all(isinstance(item.get("name"), str) for item in catalog):
            raise ValueError("a tool of the catalog has no name")
        return catalog

    @property
    def unhandled(self) -> str | None:
        """Why none of its workers handles its events; ``None`` if they do."""
        if self.has_entry:
            return None
        return (
            f"only a producer that calls client.receive({self.name!r}) handles its events: "
            "the Agent has neither 'entry' nor 'modelConfig'"
        )

    def with_dynamic_tools(self, announced: "AgentRecord | None") -> "AgentRecord":
        """Add the dynamic tools that workers announced to this description, made from the bundle.

        Dynamic tools are those of extensions and MCP servers.
        """
        if announced is None:
            return self
        declared = {item["name"] for item in self.catalog}
        dynamic = [
            item
            for item in announced.catalog
            if item["name"] not in declared and member(item.get("source"), "type") in ("extension", "mcp")
        ]
        return self.model_copy(update={"catalog": (*self.catalog, *dynamic)}) if dynamic else self


class McpServerRecord(WireModel):
    """The state of an agent's MCP server in one worker process."""

    agent: str
    name: str
    is_up: bool
    #: the number of its tools in the agent's catalog
    tools: int = 0
    #: the names of tools that are not in the catalog, and why; some of them, if there are many
    left_out: dict[str, str] = Field(default_factory=dict)
    #: how often it was lost or did not start
    failures: int = 0
    #: why it is down
    reason: str | None = None


class WorkerRecord(WireModel):
    """A live worker process. ``root_id`` identifies its state root; times are ISO 8601."""

    name: str
    #: random per process, since names of hosts and so of workers may repeat
    id: str = ""
    pid: int
    host: str
    #: the kernel and the pid namespace of ``pid``; empty if its version does not report it
    place: str = ""
    agents: tuple[str, ...]
    concurrency: int
    root_id: str
    local_workdir: tuple[str, ...] = ()
    started_at: str
    mcp_servers: tuple[McpServerRecord, ...] = ()
    #: the active revision of the bundle; ``None`` if the worker follows none
    bundle_ref: str | None = None
    #: empty if its version does not report it
    swarm: str = ""
    workspace: str = ""
    #: whether it has registered but was not accepted yet
    is_joining: bool = False

    @property
    def row(self) -> str:
        """The worker's id in the registry; names may repeat."""
        return self.id or self.name

    def is_process(self, pid: int) -> bool:
        """Return whether this worker is the process ``pid`` on this machine."""
        return self.pid == pid and self.place == this_process().place

    def is_elsewhere(self, other: "WorkerRecord") -> bool:
        """Return whether the two workers are in different workspaces."""
        return len({self.workspace, other.workspace} - {""}) > 1


def describe_agents(bundle: "Bundle", swarm: str | None, workspace: str | None) -> list[AgentRecord]:
    """Describe every agent of the bundle's swarm, with its catalog.

    Raises:
        ConfigError: the bundle has no such swarm.
    """
    from goondan_tasks.bundle import build_catalog  # a producer without a bundle does not need it

    swarm_name = bundle.swarm(swarm).metadata.name
    return [
        AgentRecord(
            name=name,
            swarm=swarm_name,
            workspace=bundle.workspace_name(workspace, swarm),
            catalog=tuple(build_catalog(bundle, name).to_wire()),
            entry_agent=bundle.swarm(swarm).spec.entry_agent.name,
            has_entry=bundle.agents[name].handles_events,
            idempotent=bundle.agents[name].spec.idempotent,
        )
        for name in bundle.agent_names(swarm)
    ]


class AgentRegistry:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def publish_agents(self, agents: Iterable[AgentRecord], served: Collection[str] = ()) -> None:
        """Announce all agents of a swarm to producers.

        Other agents of the swarm are removed, unless a live worker, perhaps with a newer bundle, serves them.
        Agents that are not ``served`` here keep their announced dynamic tools, which only their workers know.
        An agent that live workers of another workspace serve keeps its whole announcement.
        """
        announced = self.agents()
        agents = self._not_served_elsewhere(list(agents), served)
        agents = [
            agent if agent.name in served else agent.with_dynamic_tools(announced.get(agent.name))
            for agent in agents
        ]
        rows = {agent.name: serializer.encode(agent.to_wire()) for agent in agents}
        if not rows:
            return
        swarms = {(agent.swarm, agent.workspace) for agent in agents}
        ours = {name for name, agent in announced.items() if (agent.swarm, agent.workspace) in swarms}
        removed = ours - rows.keys()
        if removed:
            removed = removed.difference(served, *(worker.agents for worker in self.workers()))
        with self._redis.pipeline() as pipe:
            pipe.hset(self._keys.agents, mapping=rows)  # type: ignore[arg-type]
            if removed:
                pipe.hdel(self._keys.agents, *removed)
            pipe.expire(self._keys.agents, AGENTS_TTL_SECONDS)
            pipe.execute()

    def _not_served_elsewhere(self, agents: list[AgentRecord], served: Collection[str]) -> list[AgentRecord]:
        if all(agent.name in served for agent in agents):
            return agents
        workspaces = {name: worker.workspace for worker in self.workers() for name in worker.agents}
        return [
            agent
            for agent in agents
            if agent.name in served or workspaces.get(agent.name, "") in {"", agent.workspace}
        ]

    def agents(self) -> dict[str, AgentRecord]:
        """Return the announced agents by name, without those whose rows cannot be read."""
        with naming(self._keys.agents):
            rows = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.agents))
        named = {name.decode(errors="replace"): row for name, row in rows.items()}
        records = {name: read_row(AgentRecord, row, f"agent {name!r}") for name, row in named.items()}
        return {
            name: record
            for name, record in sorted(records.items())
            if record is not None and record.name == name
        }

    def join(self, worker: WorkerRecord, ttl_seconds: int) -> list[WorkerRecord]:
        """Register a worker that wants to join; return the workers that are alive or registered earlier.

        Of two workers that register at the same time, only the later one sees the other. :meth:`workers` does
        not return a worker before it is published.
        """
        joining, now = worker.model_copy(update={"is_joining": True}), redis_time(self._redis)
        with naming(self._keys.workers), self._redis.pipeline() as pipe:
            pipe.zrange(self._keys.workers, 0, -1)
            self._write(pipe, joining, now, ttl_seconds)
            found, *_ = pipe.execute()
        return [other for other in self._read(found) if other.row != worker.row]

    def publish_worker(self, worker: WorkerRecord, ttl_seconds: int) -> None:
        """Renew a worker's heartbeat for ``ttl_seconds``, and the lifetime of the agents' table."""
        now = redis_time(self._redis)
        with self._redis.pipeline() as pipe:
            self._write(pipe, worker, now, ttl_seconds)
            pipe.expire(self._keys.agents, AGENTS_TTL_SECONDS)
            pipe.execute()

    def _write(self, pipe: Pipeline, worker: WorkerRecord, now: float, ttl_seconds: int) -> None:
        seconds = int(now // 1000)
        row = serializer.encode(worker.to_wire())
        # a published worker that joins again, after a reconnection, stays published
        pipe.set(self._keys.worker(worker.row), row, ex=ttl_seconds, nx=worker.is_joining)
        pipe.zadd(self._keys.workers, {worker.row: seconds})
        pipe.zremrangebyscore(self._keys.workers, "-inf", seconds - 2 * ttl_seconds)
        pipe.expire(self._keys.workers, 2 * ttl_seconds)

    def remove_worker(self, row: str) -> None:
        with self._redis.pipeline() as pipe:
            pipe.delete(self._keys.worker(row))
            pipe.zrem(self._keys.workers, row)
            pipe.execute()

    def workers(self) -> list[WorkerRecord]:
        with naming(self._keys.workers):
            found = cast("list[bytes]", self._redis.zrange(self._keys.workers, 0, -1))
        return [worker for worker in self._read(found) if not worker.is_joining]

    def _read(self, found: list[bytes]) -> list[WorkerRecord]:
        if not found:
            return []
        names = [row.decode(errors="replace") for row in found]
        rows = cast("list[bytes | None]", self._redis.mget([self._keys.worker(name) for name in names]))
        records = (
            read_row(WorkerRecord, row, f"worker {name!r}") for name, row in zip(names, rows, strict=True)
        )
        return sorted(filter(None, records), key=lambda record: record.name)


class ShutdownRequest(WireModel):
    """A request to drain all workers of an agent, or one worker, given by its name."""

    agent: str | None = None
    worker: str | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _is_about_one(self) -> Self:
        if bool(self.agent) == bool(self.worker):
            raise ValueError("name either an agent or a worker")
        return self

    @property
    def target(self) -> str:
        """The part of the Redis key that identifies the target."""
        return f"agent:{self.agent}" if self.agent else f"worker:{self.worker}"


class _StoredRequest(Versioned):
    at: int
    reason: str = ""


class ShutdownRequests:
    """The requests to drain of one namespace. Times are milliseconds, Redis time."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def now(self) -> int:
        """Return the Redis time; a worker ignores requests from before its start."""
        return int(redis_time(self._redis))

    def ask(self, request: ShutdownRequest) -> None:
        """Ask the workers that run now to drain; this replaces an earlier request."""
        stored = _StoredRequest(at=self.now(), reason=request.reason)
        self._redis.set(
            self._keys.shutdown(request.target), serializer.encode(stored.to_wire()), ex=SHUTDOWN_TTL_SECONDS
        )

    def agents_to_stop(self, worker: str, agents: Sequence[str], since: int) -> dict[str, str]:
        """Return the agents that a worker should stop serving, with the reasons.

        A request for the worker itself means all its agents. Requests from before ``since`` are ignored.
        """
        requests = [ShutdownRequest(worker=worker), *(ShutdownRequest(agent=agent) for agent in agents)]
        rows = self._redis.mget([self._keys.shutdown(request.target) for request in requests])
        stored = [
            read_row(_StoredRequest, row, f"the request to drain {request.target}")
            for row, request in zip(cast("list[bytes | None]", rows), requests, strict=True)
        ]
        own, *others = [one if one is not None and one.at > since else None for one in stored]
        if own is not None:
            return dict.fromkeys(agents, own.reason)
        return {agent: one.reason for agent, one in zip(agents, others, strict=True) if one is not None}
