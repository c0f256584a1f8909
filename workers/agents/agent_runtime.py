"""``ctx.runtime`` in a worker: requests and events for other agents, by way of the ledger."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goondan_tasks.errors import (
    AgentNotFoundError,
    ToolCallConflictError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.handoff import (
    Asker,
    Handoff,
    accepted,
    handoff_call,
    not_answered,
    request_result,
    require_timeout,
    sent,
)
from goondan_tasks.messages import LONGEST_RUN_SECONDS, ToolCall, wall_clock
from goondan_tasks.tool_api import (
    REQUEST_TIMEOUT_MS,
    CatalogResult,
    EventLike,
    ListResult,
    RequestResult,
    SendResult,
    SpawnResult,
)
from goondan_tasks.wording import closest
from workers.agents.handoffs import HandedOver, Handoffs
from workers.agents.waits import Waits
from workers.cancellation import Cancellation
from workers.instances.service import InstanceService, Spawner

Options = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Swarm:
    """What every run of a process is told of its swarm."""

    name: str
    entry_agent: str
    agents: tuple[str, ...]
    most_hops: int

    def require(self, agent: Any) -> str:
        """Return the name of an agent of the swarm.

        Raises:
            AgentNotFoundError: there is none of this name.
        """
        if agent not in self.agents:
            meant = closest(agent, self.agents) if isinstance(agent, str) else None
            hint = f"; did you mean {meant!r}?" if meant else f"; it has: {', '.join(self.agents)}."
            raise AgentNotFoundError(f"No agent {agent!r} in the swarm{hint}")
        return str(agent)


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """What both kinds of ``ctx.runtime`` are made of."""

    swarm: Swarm
    handoffs: Handoffs
    desk: InstanceService
    asker: Asker
    waits: Waits
    cancellation: Cancellation
    #: the asker's
    workdir: Path

    def spawn(self, target: str, options: Options, instance_key: str | None, cwd: str | None) -> SpawnResult:
        """Prepare an instance of an agent; this blocks."""
        given = _options(options, {"instanceKey": instance_key, "cwd": cwd})
        return self.desk.spawn(
            self._spawner,
            self.swarm.require(target),
            instance_key=given["instanceKey"],
            cwd=given["cwd"],
            request=self.asker.new_id(["spawn", target, given]),
        )

    def list_instances(self, options: Options, *, include_all: bool) -> ListResult:
        """Return instances; this blocks."""
        given = _options(options, {"includeAll": include_all or None})
        if not isinstance(given["includeAll"], bool | None):
            raise ToolInputValidationError(f"includeAll must be true or false, not {given['includeAll']!r}.")
        return self.desk.list(self._spawner, include_all=bool(given["includeAll"]))

    @property
    def _spawner(self) -> Spawner:
        return Spawner(self.asker.name, self.asker.instance_key, self.workdir)

    def request_call(self, target: str, event: EventLike, *, timeout_ms: float, is_awaited: bool) -> ToolCall:
        """Return the call that asks an agent; raises as ``request`` does."""
        target = self.swarm.require(target)
        return self._call(Handoff(target, event, is_awaited=is_awaited, timeout_ms=timeout_ms))

    def event_call(self, target: str, event: EventLike) -> ToolCall:
        """Return the call that gives an agent an event; raises as ``send`` does."""
        target = self.swarm.require(target)
        return self._call(Handoff(target, event, is_request=False, is_awaited=False))

    def catalog(self) -> CatalogResult:
        """Return the agents of the swarm; all of them can be called (DESIGN §6)."""
        return CatalogResult(
            swarm_name=self.swarm.name,
            entry_agent=self.swarm.entry_agent,
            self_agent=self.asker.name,
            available_agents=self.swarm.agents,
            callable_agents=self.swarm.agents,
        )

    def _call(self, handoff: Handoff) -> ToolCall:
        return handoff_call(self.asker, handoff, most_hops=self.swarm.most_hops, now_ms=wall_clock())


@dataclass(frozen=True, slots=True)
class BlockingRuntime:
    """``ctx.runtime`` of plain code; each method is described in :class:`AgentRuntime`."""

    parts: RuntimeParts

    def request(
        self,
        target: str,
        event: EventLike,
        options: Options = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
    ) -> RequestResult:
        """Ask an agent, and block until it answers."""
        parts = self.parts
        timeout_ms, is_async = _request_options(options, timeout_ms, is_async)
        call = parts.request_call(target, event, timeout_ms=timeout_ms, is_awaited=not is_async)
        parts.handoffs.get_ready()
        if is_async:
            parts.handoffs.submit_event(call).accepted.result()
            return accepted(call)
        with parts.waits.blocked():
            handed = parts.handoffs.submit_event(call)
            try:
                with parts.handoffs.awaited([handed], parts.cancellation):
                    result = handed.pending.result(timeout_ms / 1000)
            except WaitTimeout as error:
                raise not_answered(call, timeout_ms / 1000) from error
        return request_result(call, result)

    def send(self, target: str, event: EventLike) -> SendResult:
        """Give an agent an event that it does not answer."""
        call = self.parts.event_call(target, event)
        self.parts.handoffs.get_ready()
        try:
            self.parts.handoffs.submit_event(call).accepted.result()
        except ToolCallConflictError:
            return sent(call, accepted=False)
        return sent(call)

    def spawn(
        self,
        target: str,
        options: Options = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> SpawnResult:
        """Prepare an instance of an agent."""
        return self.parts.spawn(target, options, instance_key, cwd)

    def list(self, options: Options = None, *, include_all: bool = False) -> ListResult:
        """Return the instances that the asker has spawned, or all of the swarm."""
        return self.parts.list_instances(options, include_all=include_all)

    def catalog(self) -> CatalogResult:
        """Return the agents of the swarm."""
        return self.parts.catalog()


@dataclass(frozen=True, slots=True)
class AsyncRuntime:
    """``ctx.runtime`` of ``async`` code: the same methods, as coroutines."""

    parts: RuntimeParts

    async def request(
        self,
        target: str,
        event: EventLike,
        options: Options = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
    ) -> RequestResult:
        """Ask an agent, and wait for its answer; if the wait is cancelled, the agent is told to stop."""
        parts = self.parts
        timeout_ms, is_async = _request_options(options, timeout_ms, is_async)
        call = parts.request_call(target, event, timeout_ms=timeout_ms, is_awaited=not is_async)
        await _get_ready(parts.handoffs)
        if is_async:
            await _accepted(parts.handoffs.submit_event(call))
            return accepted(call)
        async with parts.waits.away():
            handed = parts.handoffs.submit_event(call)
            try:
                with parts.handoffs.awaited([handed], parts.cancellation):
                    result = await handed.pending.wait(timeout_ms / 1000)
            except WaitTimeout as error:
                raise not_answered(call, timeout_ms / 1000) from error
        return request_result(call, result)

    async def send(self, target: str, event: EventLike) -> SendResult:
        """Give an agent an event that it does not answer."""
        call = self.parts.event_call(target, event)
        await _get_ready(self.parts.handoffs)
        try:
            await _accepted(self.parts.handoffs.submit_event(call))
        except ToolCallConflictError:
            return sent(call, accepted=False)
        return sent(call)

    async def spawn(
        self,
        target: str,
        options: Options = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> SpawnResult:
        """Prepare an instance of an agent."""
        return await asyncio.to_thread(self.parts.spawn, target, options, instance_key, cwd)

    async def list(self, options: Options = None, *, include_all: bool = False) -> ListResult:
        """Return the instances that the asker has spawned, or all of the swarm."""
        return await asyncio.to_thread(self.parts.list_instances, options, include_all=include_all)

    async def catalog(self) -> CatalogResult:
        """Return the agents of the swarm."""
        return self.parts.catalog()


async def _accepted(handed: HandedOver) -> None:
    """Wait until the ledger has it; who gives up waiting does not take the future from whoever settles it."""
    await asyncio.shield(asyncio.wrap_future(handed.accepted))


async def _get_ready(handoffs: Handoffs) -> None:
    if not handoffs.is_ready:
        await asyncio.to_thread(handoffs.get_ready)


def _request_options(options: Options, timeout_ms: float | None, is_async: bool) -> tuple[float, bool]:
    given = _options(options, {"timeoutMs": timeout_ms, "async": is_async or None})
    timeout = given["timeoutMs"]
    if timeout is None:
        timeout = REQUEST_TIMEOUT_MS
    timeout = require_timeout("timeoutMs", timeout, LONGEST_RUN_SECONDS * 1000)
    if not isinstance(given["async"], bool | None):
        raise ToolInputValidationError(f"async must be true or false, not {given['async']!r}.")
    return timeout, bool(given["async"])


def _options(options: Options, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options, given either way."""
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise ToolInputValidationError(f"Options are an object, not {type(given).__name__}.")
    for name in given.keys() - keywords.keys():
        meant = closest(str(name), keywords)
        hint = f"did you mean {meant!r}?" if meant else f"there are: {', '.join(keywords)}."
        raise ToolInputValidationError(f"There is no option {name!r}; {hint}")
    return {name: given.get(name) if keyword is None else keyword for name, keyword in keywords.items()}
