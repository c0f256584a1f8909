"""The audit: who did what, when, and by which door."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from goondan_tasks.client import AsyncClient, AuditEntry
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.wire import Listing, Page


class AuditListing(Listing):
    """Which acts to return."""

    by: str | None = Field(None, description="Only those of this person or token.")
    target: str | None = Field(
        None, description="Only those on the object with this id or name, or on this agent's."
    )
    act: str | None = Field(None, description="Only this act, such as `cancel` or `token.add`.")
    door: str | None = Field(None, description="Only those by this door, such as `cli` or `console`.")
    newer_than: float | None = Field(None, ge=0, description="Only those of the last so many seconds.")


@dataclass(frozen=True, slots=True)
class Audit:
    """The operation on the audit."""

    client: AsyncClient

    async def list_acts(self, asked: Asked) -> Reply:
        """List who did what, the latest first; the latest 10,000 acts are kept."""
        query: AuditListing = asked.query
        wanted = query.model_dump(exclude={"limit", "cursor"})
        found = await self.client.audit(query.limit + 1, before=query.cursor, **wanted)
        items = found[: query.limit]
        return Reply(
            Page[AuditEntry](items=items, next_cursor=items[-1].id if len(found) > len(items) else None)
        )

    def operations(self) -> Sequence[Operation]:
        """Return it as a table."""
        listed = {200: Content("A page.", Page[AuditEntry])}
        return [Operation("GET", "/v1/audit", "audit", "admin", self.list_acts, listed, query=AuditListing)]
