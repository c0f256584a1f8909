"""The client for asyncio: the same methods, as coroutines."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, Unpack

from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.queue_status import QueueStatus
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.new_call import CallFields
from goondan_tasks.roster import AgentRecord, WorkerRecord


class AsyncClient:
    """A :class:`Client` whose methods never block the event loop.

    Short trips to Redis run in a thread; waiting for a result holds none (``await call``).
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def connect(cls, url: str | None = None, *, bundle: Path | str | None = None) -> Self:
        """Make a client; see :meth:`Client.connect`."""
        return cls(await asyncio.to_thread(Client.connect, url, bundle=bundle))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the subscription and close the connections."""
        await asyncio.to_thread(self._client.close)

    async def submit(
        self, agent: str, tool: str, args: Any = None, **fields: Unpack[CallFields]
    ) -> PendingCall:
        """Queue a call; see :meth:`Client.submit`."""
        return await asyncio.to_thread(self._client.submit, agent, tool, args, **fields)

    async def submit_many(self, calls: Iterable[ToolCall | Mapping[str, Any]]) -> list[PendingCall]:
        """Queue many calls in one trip; see :meth:`Client.submit_many`."""
        return await asyncio.to_thread(self._client.submit_many, calls)

    async def call(
        self,
        agent: str,
        tool: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        **fields: Unpack[CallFields],
    ) -> ToolCallResult:
        """Submit and wait; see :meth:`Client.call`."""
        pending = await self.submit(agent, tool, args, **fields)
        return await pending.wait(timeout)

    async def pending(self, call_id: str) -> PendingCall:
        """Return a call that was submitted before; see :meth:`Client.pending`."""
        return await asyncio.to_thread(self._client.pending, call_id)

    async def record(self, call_id: str) -> CallRecord:
        """Return the ledger's record of a call; see :meth:`Client.record`."""
        return await asyncio.to_thread(self._client.record, call_id)

    async def cancel(self, call_id: str) -> None:
        """Cancel a call; see :meth:`Client.cancel`."""
        await asyncio.to_thread(self._client.cancel, call_id)

    async def calls(self, agent: str | None = None, limit: int = 50) -> list[CallRecord]:
        """Return the most recent calls; see :meth:`Client.calls`."""
        return await asyncio.to_thread(self._client.calls, agent, limit)

    async def agents(self) -> dict[str, AgentRecord]:
        """Return the agents that can be called; see :meth:`Client.agents`."""
        return await asyncio.to_thread(self._client.agents)

    async def catalog(self, agent: str) -> tuple[JsonObject, ...]:
        """Return an agent's Tool Catalog; see :meth:`Client.catalog`."""
        return await asyncio.to_thread(self._client.catalog, agent)

    async def workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive; see :meth:`Client.workers`."""
        return await asyncio.to_thread(self._client.workers)

    async def queues(self) -> list[QueueStatus]:
        """Return how every agent's queue stands; see :meth:`Client.queues`."""
        return await asyncio.to_thread(self._client.queues)
