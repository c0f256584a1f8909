"""Agents, workers, queues, limits and Connections: how they fare, and what pauses agents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from goondan_tasks.client import AsyncClient
from goondan_tasks.client.status import AgentState, AgentStatus, LimitStatus, QueueStatus
from goondan_tasks.contract.errors import AgentNotFoundError, ToolNotInCatalogError
from goondan_tasks.contract.messages import JsonObject, WireModel
from goondan_tasks.fleet.agent_registry import WorkerRecord
from goondan_tasks.fleet.connections import ConnectionStatus
from goondan_tasks.fleet.pauses import Pause
from goondan_tasks.fleet.usage import MOST_DAYS, MOST_HOURS, Handoffs, Usage
from goondan_web.doors.api.operations import Asked, Content, Handler, Operation, Reply
from goondan_web.doors.api.wire import AgentListing, Listing, Omissible, Page, Query, page_of


class AgentView(WireModel):
    """An agent, and what its workers are doing."""

    name: str
    swarm: str
    workspace: str
    tools: list[str]
    workers: list[str]
    backlog: int
    running: int
    state: AgentState
    orchestrated: bool
    crashes: int
    next_start_seconds: float | None
    reason: str | None
    paused: list[Pause]

    @classmethod
    def of(cls, status: AgentStatus) -> Self:
        """Return the view of an agent's state."""
        return cls.from_wire(status.to_wire())


class AgentDetails(AgentView):
    """An agent with its Tool Catalog: the tools that can be called, with the schemas of their arguments."""

    catalog: list[JsonObject]


class PauseBody(Omissible):
    """What is paused, and why."""

    tool: str | None = Field(None, min_length=1, description="One tool. Default: the agent.")
    reason: str = ""
    by: str = ""


class ResumeBody(Omissible):
    """What is resumed."""

    tool: str | None = Field(None, min_length=1, description="One tool. Default: the agent.")


class UsageListing(Listing):
    """Of which days usage is listed, and in which groups."""

    days: int = Field(30, ge=1, le=MOST_DAYS, description="The last days, today included.")
    by: str = Field(
        "day",
        min_length=1,
        max_length=100,
        description="What groups it: some of `day`, `agent`, `model` and `user`, separated by commas.",
    )


class LastHours(Query):
    """Of which hours hand-offs are counted."""

    hours: int = Field(1, ge=0, le=MOST_HOURS, description="The full hours before the one that is under way.")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The operations on what runs agents."""

    client: AsyncClient

    async def list_agents(self, asked: Asked) -> Reply:
        """List the agents."""
        statuses = await self.client.agent_statuses()
        return Reply(page_of(statuses, asked.query, lambda one: [one.record.name], AgentView.of))

    async def get_agent(self, asked: Asked) -> Reply:
        """Show an agent with its tools."""
        return Reply(await self._details(asked.path["agent"]))

    async def pause_agent(self, asked: Asked) -> Reply:
        """Pause an agent, or one of its tools."""
        body: PauseBody = asked.body
        await self.client.pause(asked.path["agent"], body.tool, body.reason, body.by)
        return Reply(await self._details(asked.path["agent"]))

    async def resume_agent(self, asked: Asked) -> Reply:
        """Resume an agent, or one of its tools."""
        body: ResumeBody = asked.body
        await self.client.resume(asked.path["agent"], body.tool)
        return Reply(await self._details(asked.path["agent"]))

    async def list_queues(self, asked: Asked) -> Reply:
        """List the queues of all agents."""
        queues = await self.client.queues()
        return Reply(page_of(queues, asked.query, lambda one: [one.agent], lambda one: one))

    async def list_workers(self, asked: Asked) -> Reply:
        """List the worker processes that are alive."""
        query: AgentListing = asked.query
        workers = [one for one in await self.client.workers() if query.agent in {None, *one.agents}]
        return Reply(page_of(workers, query, lambda one: [one.name, one.id], lambda one: one))

    async def list_limits(self, asked: Asked) -> Reply:
        """List the limits that calls wait for."""
        limits = await self.client.limits()
        return Reply(page_of(limits, asked.query, lambda one: [one.limit], lambda one: one))

    async def list_connections(self, asked: Asked) -> Reply:
        """List the Connections that ran in the last 30 days."""
        found = await self.client.connections()
        return Reply(page_of(found, asked.query, lambda one: [one.workspace, one.name], lambda one: one))

    async def list_usage(self, asked: Asked) -> Reply:
        """List what was used by day, agent, model and user: calls, requests to models, and tokens."""
        query: UsageListing = asked.query
        found = await self.client.usage(query.days, query.by)
        return Reply(page_of(found, query, _usage_names, lambda one: one))

    async def get_handoffs(self, asked: Asked) -> Reply:
        """Show how often agents have passed work to each other."""
        return Reply(await self.client.handoffs(asked.query.hours))

    async def _details(self, agent: str) -> AgentDetails:
        catalog = await self.client.catalog(agent)
        for status in await self.client.agent_statuses():
            if status.record.name == agent:
                return AgentDetails.from_wire({**status.to_wire(), "catalog": list(catalog)})
        raise AgentNotFoundError(f"No agent {agent[:200]!r}.")

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        details = {200: Content("The agent.", AgentDetails)}
        unknown = (AgentNotFoundError, ToolNotInCatalogError)
        return [
            _listing("/v1/agents", self.list_agents, AgentView),
            Operation("GET", "/v1/agents/{agent}", "fleet", "read", self.get_agent, details, unknown[:1]),
            Operation(
                "POST",
                "/v1/agents/{agent}/pause",
                "fleet",
                "admin",
                self.pause_agent,
                details,
                unknown,
                body=PauseBody,
            ),
            Operation(
                "POST",
                "/v1/agents/{agent}/resume",
                "fleet",
                "admin",
                self.resume_agent,
                details,
                unknown,
                body=ResumeBody,
            ),
            _listing("/v1/queues", self.list_queues, QueueStatus),
            _listing("/v1/workers", self.list_workers, WorkerRecord, AgentListing),
            _listing("/v1/limits", self.list_limits, LimitStatus),
            _listing("/v1/connections", self.list_connections, ConnectionStatus),
            _listing("/v1/usage", self.list_usage, Usage, UsageListing),
            Operation(
                "GET",
                "/v1/handoffs",
                "fleet",
                "read",
                self.get_handoffs,
                {200: Content("The hand-offs.", Handoffs)},
                query=LastHours,
            ),
        ]


def _listing(path: str, handler: Handler, item: type[WireModel], query: type[Listing] = Listing) -> Operation:
    page = Content("A page.", Page[item])  # type: ignore[valid-type]
    return Operation("GET", path, "fleet", "read", handler, {200: page}, query=query)


def _usage_names(one: Usage) -> list[str]:
    return [name or "" for name in (one.day, one.agent, one.model, one.user)]
