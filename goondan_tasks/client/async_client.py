"""The client for asyncio: the same methods, as coroutines."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from goondan_tasks.calls import CallFields
from goondan_tasks.client.agent_status import AgentStatus
from goondan_tasks.client.async_asking import Asking
from goondan_tasks.client.async_receiving import Receiving
from goondan_tasks.client.async_turn import AsyncTurn
from goondan_tasks.client.call_output import CallOutput, OutputPart
from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.pending_methods import ErrorLike
from goondan_tasks.client.queue_status import QueueStatus
from goondan_tasks.client.received_event import ReceivedEvent
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.handoff import EventFields, accepted, not_answered, request_result
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.ledger.dead_letters import LetterFilter
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.roster import AgentRecord, WorkerRecord
from goondan_tasks.tool_api import REQUEST_TIMEOUT_MS, RequestResult, SendResult
from goondan_tasks.trace import Trace


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

    async def output(self, call_id: str) -> CallOutput:
        """Return the output of a call; see :meth:`Client.output`."""
        return await asyncio.to_thread(self._client.output, call_id)

    async def read_output(
        self, call_id: str, offset: int = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> OutputPart:
        """Read a part of a call's output; see :meth:`Client.read_output`."""
        output = await self.output(call_id)
        asked = await asyncio.to_thread(output.ask, offset, limit)
        if isinstance(asked, OutputPart):
            return asked
        return await asyncio.to_thread(output.take, offset, asked, await asked.wait(timeout))

    async def cancel(self, call_id: str) -> None:
        """Cancel a call; see :meth:`Client.cancel`."""
        await asyncio.to_thread(self._client.cancel, call_id)

    def turn(
        self,
        agent: str,
        instance_key: str = "default",
        *,
        turn_id: str | None = None,
        auth: JsonObject | None = None,
        origin: JsonObject | None = None,
        correlation_id: str | None = None,
    ) -> AsyncTurn:
        """Begin a Turn of an agent's instance, which sends nothing; see :meth:`Client.turn`."""
        return AsyncTurn(
            self._client.turn(
                agent,
                instance_key,
                turn_id=turn_id,
                auth=auth,
                origin=origin,
                correlation_id=correlation_id,
            )
        )

    async def resolve(self, call_id: str, output: Any = None) -> None:
        """Complete a pending call; see :meth:`Client.resolve`."""
        await asyncio.to_thread(self._client.resolve, call_id, output)

    async def complete_with_token(
        self, call_id: str, token: str, output: Any = None, error: ErrorLike | None = None
    ) -> None:
        """Complete a call for whoever has its callback; see :meth:`Client.complete_with_token`."""
        await asyncio.to_thread(self._client.complete_with_token, call_id, token, output, error)

    async def approvals(self, agent: str | None = None) -> list[CallRecord]:
        """Return the calls that wait for an approval; see :meth:`Client.approvals`."""
        return await asyncio.to_thread(self._client.approvals, agent)

    async def approve(self, call_id: str, by: str = "") -> None:
        """Let a call be run that waits for an approval; see :meth:`Client.approve`."""
        await asyncio.to_thread(self._client.approve, call_id, by)

    async def deny(self, call_id: str, reason: str = "", by: str = "") -> None:
        """Deny a call that waits for an approval; see :meth:`Client.deny`."""
        await asyncio.to_thread(self._client.deny, call_id, reason, by)

    async def request(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        is_async: bool = False,
        **fields: Unpack[EventFields],
    ) -> RequestResult:
        """Ask an agent, and wait for its answer; see :meth:`Client.request`.

        If the wait is cancelled, the agent is told to stop.
        """
        ask = partial(self._client.ask, agent, input, timeout=timeout, **fields)
        call, pending = await Asking(self._client, ask).result()
        if is_async:
            return accepted(call)
        try:
            return request_result(call, await pending.wait(timeout))
        except WaitTimeout as error:
            await asyncio.to_thread(self._client.call_off, pending)
            raise not_answered(call, timeout) from error
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(self._client.call_off, pending))
            raise

    async def send(self, agent: str, input: Any = None, **fields: Unpack[EventFields]) -> SendResult:
        """Give an agent an event that it does not answer; see :meth:`Client.send`."""
        return await asyncio.to_thread(partial(self._client.send, agent, input, **fields))

    async def receive(
        self, agent: str, instance_key: str | None = None, timeout: float | None = None
    ) -> ReceivedEvent | None:
        """Return the next event of an agent without an entry; see :meth:`Client.receive`."""
        return await Receiving(self._client, agent, instance_key, timeout).result()

    async def reply(self, received: ReceivedEvent, output: Any = None) -> None:
        """Answer an event; see :meth:`Client.reply`."""
        await asyncio.to_thread(self._client.reply, received, output)

    async def fail(self, failed: ReceivedEvent | str, error: ErrorLike) -> None:
        """Complete a pending call, or answer an event, with an error; see :meth:`Client.fail`."""
        await asyncio.to_thread(self._client.fail, failed, error)

    async def give_back(self, received: ReceivedEvent) -> None:
        """Let somebody else have an event; see :meth:`Client.give_back`."""
        await asyncio.to_thread(self._client.give_back, received)

    async def calls(self, agent: str | None = None, limit: int = 50) -> list[CallRecord]:
        """Return the most recent calls; see :meth:`Client.calls`."""
        return await asyncio.to_thread(self._client.calls, agent, limit)

    async def dead_letters(
        self, agent: str | None = None, limit: int | None = 50, **wanted: Unpack[LetterFilter]
    ) -> list[CallRecord]:
        """Return the calls whose every run killed its worker; see :meth:`Client.dead_letters`."""
        return await asyncio.to_thread(self._client.dead_letters, agent, limit, **wanted)

    async def dead_letter(self, call_id: str) -> CallRecord:
        """Return one dead letter; see :meth:`Client.dead_letter`."""
        return await asyncio.to_thread(self._client.dead_letter, call_id)

    async def replay(self, call_id: str, *, again: bool = False) -> PendingCall:
        """Run a call again that has ended with an error; see :meth:`Client.replay`."""
        return await asyncio.to_thread(self._client.replay, call_id, again=again)

    async def replay_all(
        self, agent: str | None = None, **wanted: Unpack[LetterFilter]
    ) -> dict[str, PendingCall]:
        """Replay dead letters; see :meth:`Client.replay_all`."""
        return await asyncio.to_thread(self._client.replay_all, agent, **wanted)

    async def drop(self, call_id: str) -> None:
        """Let a call be no dead letter any more; see :meth:`Client.drop`."""
        await asyncio.to_thread(self._client.drop, call_id)

    async def drop_all(self, agent: str | None = None, **wanted: Unpack[LetterFilter]) -> int:
        """Drop dead letters; see :meth:`Client.drop_all`."""
        return await asyncio.to_thread(self._client.drop_all, agent, **wanted)

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

    async def instances(self, agent: str | None = None) -> list[InstanceInfo]:
        """Return the instances; see :meth:`Client.instances`."""
        return await asyncio.to_thread(self._client.instances, agent)

    async def delete_instance(
        self, instance_key: str, agent: str | None = None, *, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete an instance with its files; see :meth:`Client.delete_instance`."""
        return await asyncio.to_thread(self._client.delete_instance, instance_key, agent, dry_run=dry_run)

    async def collect_garbage(
        self, older_than_seconds: float, *, unlisted: bool = False, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete the instances that nobody has used for so long; see :meth:`Client.collect_garbage`."""
        return await asyncio.to_thread(
            self._client.collect_garbage, older_than_seconds, unlisted=unlisted, dry_run=dry_run
        )

    async def trace(self, name: str) -> Trace:
        """Return the tree of calls and handoffs of a correlationId; see :meth:`Client.trace`."""
        return await asyncio.to_thread(self._client.trace, name)

    async def agent_statuses(self) -> list[AgentStatus]:
        """Return how every agent stands; see :meth:`Client.agent_statuses`."""
        return await asyncio.to_thread(self._client.agent_statuses)

    async def shutdown(
        self, agent: str | None = None, worker: str | None = None, reason: str = ""
    ) -> list[WorkerRecord]:
        """Ask workers to drain; see :meth:`Client.shutdown`."""
        return await asyncio.to_thread(self._client.shutdown, agent, worker, reason)
