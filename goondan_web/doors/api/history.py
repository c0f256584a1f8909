"""Searches for calls, dead letters, to be replayed or dropped, and traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import AgentNotFoundError, CallNotFoundError, NotReplayableError
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.history.failures import Failures
from goondan_tasks.history.trace import Trace, TraceSummary
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.runs import CallView
from goondan_web.doors.api.wire import CallListing, Done, Found, Listing, Name, Page, Query, page_of

#: how many of the latest calls are searched for traces
_SEARCHED = 1_000


class Repetition(Query):
    """Whether a letter that was replayed before is replayed once more."""

    again: bool = False


class FailureListing(Query):
    """Which failures to count; ages are seconds since the end of a call."""

    agent: Name | None = Field(None, description="Only those of this agent.")
    only_dead: bool = Field(False, description="Only dead letters.")
    older_than: float | None = Field(None, ge=0)
    newer_than: float | None = Field(None, ge=0)


@dataclass(frozen=True, slots=True)
class History:
    """The operations on what has ended."""

    client: AsyncClient

    async def list_calls(self, asked: Asked) -> Reply:
        """List the calls that a filter selects, the latest first; a page has looked at 20,000 at most."""
        return await self._found(asked, only_letters=False)

    async def list_failures(self, asked: Asked) -> Reply:
        """Count the latest 2,000 calls that ended with an error by what their failures have in common."""
        query: FailureListing = asked.query
        return Reply(
            await self.client.failures(
                query.agent,
                only_dead=query.only_dead,
                older_than=query.older_than,
                newer_than=query.newer_than,
            )
        )

    async def _found(self, asked: Asked, *, only_letters: bool) -> Reply:
        query: CallListing = asked.query
        page = await self.client.call_page(
            query.agent, query.limit, cursor=query.cursor, only_letters=only_letters, **query.wanted
        )
        items = [CallView.of(one) for one in page.calls]
        return Reply(
            Found[CallView](items=items, next_cursor=page.cursor, searched=page.searched, total=page.total)
        )

    async def list_dead_letters(self, asked: Asked) -> Reply:
        """List the dead letters, the latest first."""
        return await self._found(asked, only_letters=True)

    async def replay_dead_letter(self, asked: Asked) -> Reply:
        """Run a dead letter again, as a new call."""
        query: Repetition = asked.query
        call = await self.client.replay(asked.path["id"], again=query.again)
        view = CallView.of(await self.client.record(call.id))
        return Reply(view, 202, {"Location": view.links["self"]})

    async def drop_dead_letter(self, asked: Asked) -> Reply:
        """Remove a call from the dead letters; its record stays until it expires."""
        await self.client.drop(asked.path["id"])
        return Reply(Done(id=asked.path["id"]))

    async def list_traces(self, asked: Asked) -> Reply:
        """List the traces of the 1,000 most recent calls, the latest first."""
        traces = await self.client.traces(_SEARCHED)
        return Reply(
            page_of(
                traces,
                asked.query,
                lambda one: [-epoch_milliseconds(one.latest_at), one.trace_id, one.correlation_id],
                lambda one: one,
            )
        )

    async def get_trace(self, asked: Asked) -> Reply:
        """Show the tree of calls of a trace, by its correlationId, its traceId, or one of the calls."""
        return Reply(await self.client.trace(asked.path["id"]))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        letter, letters = "/v1/dead-letters/{id}", "dead letters"
        unknown = (CallNotFoundError,)
        refused = (*unknown, NotReplayableError, AgentNotFoundError)
        listed = {200: Content("A page.", Found[CallView])}
        counted = {200: Content("The kinds of failures.", Failures)}
        begun = {202: Content("The new call.", CallView)}
        dropped = {200: Content("It is dropped.", Done)}
        traces = {200: Content("A page.", Page[TraceSummary])}
        return [
            Operation("GET", "/v1/calls", "calls", "read", self.list_calls, listed, query=CallListing),
            Operation(
                "GET", "/v1/failures", "calls", "read", self.list_failures, counted, query=FailureListing
            ),
            Operation(
                "GET",
                "/v1/dead-letters",
                letters,
                "read",
                self.list_dead_letters,
                listed,
                query=CallListing,
            ),
            Operation(
                "POST",
                f"{letter}/replay",
                letters,
                "admin",
                self.replay_dead_letter,
                begun,
                refused,
                query=Repetition,
            ),
            Operation("DELETE", letter, letters, "admin", self.drop_dead_letter, dropped, unknown),
            Operation("GET", "/v1/traces", "traces", "read", self.list_traces, traces, query=Listing),
            Operation(
                "GET",
                "/v1/traces/{id}",
                "traces",
                "read",
                self.get_trace,
                {200: Content("The trace.", Trace)},
                unknown,
            ),
        ]
