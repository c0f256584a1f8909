"""Calls that wait for an approval: list them, and decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    PayloadTooLargeError,
    ToolInputValidationError,
)
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
    idempotent: bool | None = Field(
        None, description="Whether it may run again if its worker dies; null if that is not known."
    )

    @classmethod
    def of(cls, record: CallRecord) -> "ApprovalView":
        """Return the view of the record of a call."""
        return cls(**dict(CallView.of(record)), args=record.call.args, idempotent=record.is_idempotent)


class ApprovalListing(AgentListing):
    """What narrows the calls that wait."""

    tool: str | None = Field(None, description="Only calls of matching tools: a glob such as `bash__*`.")


class DecisionBody(Sent):
    """A decision."""

    decision: Literal["approve", "deny"]
    by: str = Field(
        "",
        max_length=LONGEST_NAME,
        description="Who decides. Default: the name of the token; only `admin` may give another.",
    )
    reason: str = Field("", description="Of a denial: the agent reads it.")
    args: dict[str, Any] | None = Field(
        None,
        description="Of an approval: arguments that replace those of the call. The agent is told.",
    )

    @model_validator(mode="after")
    def _only_approvals_have_args(self) -> Self:
        if self.decision == "deny" and self.args is not None:
            raise ValueError("args go with the decision approve")
        return self


@dataclass(frozen=True, slots=True)
class Approvals:
    """The operations on approvals."""

    client: AsyncClient

    async def list_approvals(self, asked: Asked) -> Reply:
        """List the calls that wait for an approval, the oldest first."""
        query: ApprovalListing = asked.query
        waiting = await self.client.approvals(query.agent, tool=query.tool)
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
            await self.client.approve(call_id, by, body.args)
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
                query=ApprovalListing,
            ),
            Operation(
                "POST",
                "/v1/approvals/{id}",
                "approvals",
                "approve",
                self.decide_approval,
                {200: Content("The call, as it is now.", CallView)},
                (
                    CallNotFoundError,
                    CallClosedError,
                    CallNotPendingError,
                    ToolInputValidationError,
                    PayloadTooLargeError,
                ),
                body=DecisionBody,
            ),
        ]
