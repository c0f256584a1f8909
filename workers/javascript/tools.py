"""Tools whose handlers are TypeScript or JavaScript, and the hosts that they share."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.authoring.v1_api import V1ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.errors import (
    ToolCrashedError,
    ToolError,
    ToolNotFoundError,
    ToolOutcomeUnknownError,
)
from goondan_tasks.contract.failure import DescribedError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine.javascript import INSTALL, Runtime, find_runtime, missing_runtime
from workers.javascript.host import Asked, Host, HostEndedError, HostKind
from workers.javascript.v1_context import v1_asked, v1_data
from workers.plain_context import wire_of
from workers.processes import frames
from workers.processes.confinement import Confinement
from workers.reporters import relay_output, void_output

#: how often a call is started whose host ends, if it is idempotent or has not begun
MOST_RUNS = 3
#: how long an idle host is kept that runs one call at a time
IDLE_SECONDS = 60.0


class Hosts:
    """The hosts of one revision in a worker process, started when they are first needed."""

    def __init__(self) -> None:
        self._shared: dict[HostKind, asyncio.Task[Host]] = {}
        self._idle: list[Host] = []
        self._all: set[Host] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no host runs."""
        return not self._all

    async def shared(self, kind: HostKind, help_url: str) -> Host:
        """Return the host that all calls of a kind share; start it if none is open.

        Raises:
            OSError: no process can be started.
            ConfigError: the sandbox does not work here.
        """
        starting = self._shared.get(kind)
        if starting is None or (starting.done() and not _is_open(starting)):
            starting = self._shared[kind] = asyncio.create_task(self._start(kind, help_url))
        return await asyncio.shield(starting)

    async def lent(self, kind: HostKind, help_url: str) -> Host:
        """Lend a host for one call, until it is given back; raises as :meth:`shared`."""
        while self._idle:
            host = next((host for host in reversed(self._idle) if host.kind == kind), None)
            if host is None:
                break
            self._idle.remove(host)
            if host.is_open:
                return host
        return await self._start(kind, help_url)

    def give_back(self, host: Host) -> None:
        """Keep a lent host for the next call, for a while."""
        if not (host.is_open and host.is_idle):
            host.stop("was ended")
            return
        self._idle.append(host)
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_idle, host)

    async def close(self) -> None:
        """End all hosts."""
        hosts = list(self._all)
        for host in hosts:
            host.stop("was ended with its worker")
        for host in hosts:
            await host.ended.wait()

    async def _start(self, kind: HostKind, help_url: str) -> Host:
        host = await Host.start(kind, help_url)
        self._all.add(host)
        watch = asyncio.create_task(host.ended.wait())
        watch.add_done_callback(lambda _: self._all.discard(host))
        return host

    def _end_idle(self, host: Host) -> None:
        with contextlib.suppress(ValueError):  # it is lent, or an earlier timer has ended it
            self._idle.remove(host)
            host.stop("was idle")


def _is_open(starting: "asyncio.Task[Host]") -> bool:
    return not starting.cancelled() and starting.exception() is None and starting.result().is_open


@dataclass(frozen=True, slots=True)
class HostedTools:
    """Makes the tools of one bundle that are TypeScript or JavaScript."""

    hosts: Hosts
    root: Path
    help_url: str
    confinement: Confinement = field(default_factory=Confinement)
    #: the setting ``GOONDAN_JAVASCRIPT``
    runtime: str | None = None
    #: the limit of a message between worker and host
    max_message_bytes: int = frames.ROOM_BYTES

    def tool(self, bound: BoundTool) -> "HostedTool":
        """Return a tool that runs in a host.

        Raises:
            ToolNotFoundError: there is neither Node nor Bun.
        """
        is_for_node = bound.is_v1 or bound.export.memory_mb is not None  # Bun has no such limit
        runtime = find_runtime(self.runtime, preferred="node" if is_for_node else "bun")
        if runtime is None:
            missing = missing_runtime(self.runtime)
            raise ToolNotFoundError(f"Tool {bound.name!r}: {missing}.", suggestion=INSTALL)
        return HostedTool(bound, self, runtime)


@dataclass(frozen=True, slots=True)
class HostedTool:
    """The handler of one export; to the worker it is an async handler."""

    bound: BoundTool
    tools: HostedTools
    runtime: Runtime
    #: the shared host by agent; a host's environment never changes
    _hosts: dict[str, Host] = field(default_factory=dict)

    async def __call__(self, ctx: ToolContext, args: JsonObject) -> Any:
        """Run the handler and return its value.

        Raises:
            DescribedError: the handler threw an error.
            ToolCrashedError: the host ended, and this call was the only one in it.
            ToolOutcomeUnknownError: the host ended, and it is not known how far the call got.
            PayloadTooLargeError: the order is larger than a message may be.
            ConfigError: a variable that the tool names has no value, or its sandbox does not work here.
            OSError: no process can be started.
        """
        for runs in range(1, MOST_RUNS + 1):
            try:
                return await self._run(ctx, args)
            except HostEndedError as error:
                may_run_again = self.bound.export.idempotent or not error.has_begun
                if may_run_again and runs < MOST_RUNS:
                    void_output(ctx.emit)
                    continue
                if self.bound.export.idempotent or error.was_alone:
                    raise ToolCrashedError(error.message) from error
                raise ToolOutcomeUnknownError(
                    f"{error.message} Other calls ran in it: this one may have had its effect or not."
                ) from error
        raise AssertionError

    async def _run(self, ctx: ToolContext, args: JsonObject) -> Any:
        order = self._order(ctx, args)
        host = self._hosts.get(order["ctx"]["agentName"])
        if host is None or not host.is_open:
            host = await self._host(ctx)
        try:
            outcome, message = await host.run(
                order, partial(on_event, ctx), partial(self._asked, ctx), partial(_abort_reason, ctx)
            )
        finally:
            if host.kind.is_alone:
                self.tools.hosts.give_back(host)
        if outcome == "error":
            limit = self.bound.tool.spec.error_message_limit
            raise DescribedError(frames.error_from(message["error"], self.tools.help_url, limit))
        return frames.pending_from(message["value"]) if outcome == "pending" else message["value"]

    def _asked(self, ctx: ToolContext) -> Asked:
        """Return what the handler may ask for; an isolated one reaches no agents."""
        asked = asked_of(ctx)
        if self.bound.export.isolation == "process":
            return {name: ask for name, ask in asked.items() if not name.startswith("runtime.")}
        return asked

    async def _host(self, ctx: ToolContext) -> Host:
        kind, hosts = self._kind(ctx), self.tools.hosts
        if kind.is_alone:
            return await hosts.lent(kind, self.tools.help_url)
        host = self._hosts[ctx.agent_name] = await hosts.shared(kind, self.tools.help_url)
        return host

    def _kind(self, ctx: ToolContext) -> HostKind:
        export, confinement = self.bound.export, self.tools.confinement
        environment = confinement.environment(ctx.agent_name, self.bound)
        sandbox = confinement.sandbox(self.bound, ctx.workdir)
        return HostKind(
            self.tools.root,
            self.runtime,
            tuple(sorted(environment.items())),
            sandbox,
            export.memory_mb,
            # a sandbox belongs to one instance: its host must not be kept for ever
            is_alone=export.isolation == "process" or sandbox is not None,
            max_message_bytes=self.tools.max_message_bytes,
        )

    def _order(self, ctx: ToolContext, args: JsonObject) -> JsonObject:
        export = self.bound.export
        handler = {"entry": str(self.bound.entry_path), "export": export.name}
        return {**handler, **order_of(ctx, args, is_alone=export.isolation == "process")}


def _abort_reason(ctx: ToolContext) -> JsonObject:
    if ctx.cancelled:
        return {"code": "E_TOOL_CANCELLED", "message": "The call was cancelled."}
    return {"code": "E_TOOL_TIMEOUT", "message": "The call is past its limit."}


def order_of(ctx: ToolContext, args: JsonObject, *, is_alone: bool = False) -> JsonObject:
    """Return the part of an order that says what the handler is called with."""
    older = {"v1": v1_data(ctx)} if isinstance(ctx, V1ToolContext) else {}
    wire = wire_of(ctx)
    if is_alone:
        wire["runtime"] = False
    return {**older, "input": args, "ctx": wire}


def on_event(ctx: ToolContext, kind: str, message: JsonObject) -> None:
    """Handle a log line, a progress report or output of a call; one that is not valid is ignored."""
    match kind, message:
        case "log", {"level": level, "event": event}:
            frames.log_line(ctx.logger, level, event)
        case "progress", {"args": [done, total, text]}:
            frames.report_progress(ctx.progress, done, total, text)
        case "output", {"events": events}:
            relay_output(ctx.emit, events)
        case "dropped", {"lines": lines}:
            frames.log_dropped(ctx.logger, lines)


def asked_of(ctx: ToolContext) -> Asked:
    """Return the functions that the handler of a call may ask for."""

    async def ask(name: str, *args: Any) -> Any:
        runtime = ctx.runtime
        if runtime is None:
            raise ToolError("No agents can be reached from here.")
        answer = await getattr(runtime, name)(*args)
        return answer.to_wire()

    def bind(name: str) -> Any:
        return lambda *args: ask(name, *args)

    agents = {f"runtime.{name}": bind(name) for name in ("request", "send", "spawn", "list", "catalog")}
    return {**agents, **v1_asked(ctx)} if isinstance(ctx, V1ToolContext) else agents
