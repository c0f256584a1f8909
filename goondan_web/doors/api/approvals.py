"""Calls that wait for an approval: list them, and decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError, CallNotPendingError
from goondan_tasks.contract.failure import LONGEST_NAME
from goondan_tasks.fleet.http_tokens import ADMIN
from goondan_tasks.ledger.record import CallRecord
from goondan_web.callers import MissingScopeError, caller_of
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.runs import CallView
from goondan_web.doors.api.wire import AgentListing, Page, Sent, page_of


class ApprovalView(CallView):
    """A call that waits for an approval, with what it would do."""

    args: Any

    @classmethod
    def of(cls, record: CallRecord) -> "ApprovalView":
        """Return the view of the record of a call."""
        return cls(**dict(CallView.of(record)), args=record.call.args)


class DecisionBody(Sent):
    """A decision."""

    decision: Literal["approve", "deny"]
    by: str = Field(
        "",
        max_length=LONGEST_NAME,
        description="Who decides. Default: the name of the token; only `admin` may give another.",
    )
    reason: str = Field("", description="Of a denial: the agent reads it.")


@dataclass(frozen=True, slots=True)
class Approvals:
    """The operations on approvals."""

    client: AsyncClient

    async def list_approvals(self, asked: Asked) -> Reply:
        """List the calls that wait for an approval, the oldest first."""
        query: AgentListing = asked.query
        waiting = await self.client.approvals(query.agent)
        return Reply(page_of(waiting, query, lambda one: [one.suspended_at or 0, one.id], ApprovalView.of))

    async def decide_approval(self, asked: Asked) -> Reply:
        """Approve a call, which then runs, or deny it, which ends it."""
        body: DecisionBody = asked.body
        call_id, caller = asked.path["id"], caller_of(asked.request.scope)
        if body.by not in {"", caller.name} and not caller.may(ADMIN):
            raise MissingScopeError(
                f"{caller.name} may not decide in another name: that needs the scope admin."
            )
        by = body.by or caller.name
        if body.decision == "approve":
            await self.client.approve(call_id, by)
        else:
            await self.client.deny(call_id, body.reason, by)
        return Reply(CallView.of(await self.client.record(call_id)))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        return [
            Operation(
                "GET",
                "/v1/approvals",
                "approvals",
                "read",
                self.list_approvals,
                {200: Content("A page.", Page[ApprovalView])},
                query=AgentListing,
            ),
            Operation(
                "POST",
                "/v1/approvals/{id}",
                "approvals",
                "approve",
                self.decide_approval,
                {200: Content("The call, as it is now.", CallView)},
                (CallNotFoundError, CallClosedError, CallNotPendingError),
                body=DecisionBody,
            ),
        ]
