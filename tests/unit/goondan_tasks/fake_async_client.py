"""An AsyncClient without a broker: it answers what a test has put into it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from goondan_tasks.client import AsyncClient
from goondan_tasks.client.pending_call import OutputPart
from goondan_tasks.contract.errors import BrokerUnreachableError, WaitTimeout
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.output import Progress
from goondan_tasks.ledger.record import CallRecord
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID


@dataclass
class FakeCall:
    """A submitted call: each wait ends with the next outcome."""

    id: str
    outcomes: list[ToolCallResult | Exception]
    told: list[Progress] = field(default_factory=list)

    async def result(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Return or raise the next outcome; with ``wait_pending`` no interim one."""
        outcome = self.outcomes.pop(0)
        if wait_pending and isinstance(outcome, ToolCallResult) and outcome.status == "pending":
            return await self.result(timeout, wait_pending)
        if isinstance(outcome, WaitTimeout):
            assert timeout is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def status(self) -> str:
        """Say how it stands; each time Redis is away one outcome less is left."""
        outcome = self.outcomes[0]
        if isinstance(outcome, BrokerUnreachableError):
            del self.outcomes[0]
            raise outcome
        return "running"

    async def progress(self) -> Progress | None:
        """Return what was told last: one more each time it is asked for."""
        return self.told.pop(0) if self.told else None


@dataclass
class FakeAsyncClient:
    """Knows the agent ``coder`` with its catalog."""

    catalog_now: list[JsonObject] = field(default_factory=list)
    outcomes: Sequence[ToolCallResult | Exception] = ()
    told: Sequence[Progress] = ()
    is_away: bool = False
    #: what the file of a large output holds, or why it cannot be read
    file: bytes | Exception = b""
    submitted: list[dict[str, Any]] = field(default_factory=list)
    looks: int = 0
    #: is called with each look at the catalog
    on_look: Callable[["FakeAsyncClient"], None] = lambda _: None
    #: lets calls be submitted
    may_submit: asyncio.Event | None = None
    cancelled: list[str] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)

    @property
    def as_client(self) -> AsyncClient:
        """Pass for a client."""
        return cast(AsyncClient, self)

    async def agents(self) -> dict[str, Any]:
        """Look at the catalog."""
        self.looks += 1
        self.on_look(self)
        self._require_broker()
        return {}

    async def catalog(self, _: str) -> tuple[JsonObject, ...]:
        """Return the catalog of now."""
        return tuple(self.catalog_now)

    async def submit(self, agent: str, tool: str, args: Any, **fields: Any) -> FakeCall:
        """Take a call."""
        self._require_broker()
        if self.may_submit is not None:
            await self.may_submit.wait()
        self.submitted.append({"agent": agent, "tool": tool, "args": args, **fields})
        return FakeCall(CALL_ID, list(self.outcomes), list(self.told))

    async def cancel(self, call_id: str) -> None:
        """Take a cancel."""
        self.cancelled.append(call_id)

    async def record(self, _: str) -> CallRecord:
        """Return the next record."""
        self._require_broker()
        return self.records.pop(0)

    async def read_output(self, _: str, offset: int = 0, *, timeout: float | None = None) -> OutputPart:
        """Return the next part of what a large output's file holds."""
        assert timeout is not None
        if isinstance(self.file, Exception):
            raise self.file
        return OutputPart(self.file[offset : offset + 100], offset, len(self.file))

    def _require_broker(self) -> None:
        if self.is_away:
            raise BrokerUnreachableError("Redis is away.")
