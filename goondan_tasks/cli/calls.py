"""``goondan calls``: the most recent calls."""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from goondan_tasks.cli.answer import Answer
from goondan_tasks.cli.call_id_argument import listed_id
from goondan_tasks.cli.call_view import duration_of, listed_time, outcome_of
from goondan_tasks.cli.output import Output, make_table
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.watching import Watch, give
from goondan_tasks.client import Client
from goondan_tasks.clocks import wall_clock
from goondan_tasks.ledger.record import CallRecord

#: a filter looks through so many of the most recent calls
SEARCHED = 1000

_COLUMNS = ("queued", "agent", "tool", "instance", "status", "took", "worker", "id")


class Status(StrEnum):
    """How a call stands; ``ok`` and ``error`` are the outcomes of those that are done."""

    QUEUED = "queued"
    RUNNING = "running"
    PENDING = "pending"
    DONE = "done"
    DEAD = "dead"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which calls are looked for; ``None`` is any."""

    status: Status | None
    #: a glob
    tool: str | None
    instance: str | None
    #: when they were submitted at the earliest (ms)
    since: float | None

    @property
    def is_narrowed(self) -> bool:
        return any(one is not None for one in (self.status, self.tool, self.instance, self.since))

    def fits(self, record: CallRecord) -> bool:
        return (
            (self.status is None or self.status in {record.status, record.outcome})
            and (self.tool is None or fnmatchcase(record.call.tool_name, self.tool))
            and (self.instance is None or self.instance == record.call.instance_key)
            and (self.since is None or record.queued_at >= self.since)
        )


@takes_session
def calls(
    session: Session,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only the calls of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=SEARCHED, metavar="N", help="At most so many.")] = 20,
    tool: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only calls of tools such as 'image__*'.")
    ] = None,
    instance: Annotated[str | None, typer.Option(metavar="K", help="Only those of this instance.")] = None,
    since: Annotated[
        float | None,
        typer.Option(parser=parse_seconds, metavar="S", help="Only those of the last S seconds, or 10m, 2h."),
    ] = None,
    status: Annotated[
        Status | None, typer.Option(help=f"Only calls that stand so, of the {SEARCHED} most recent.")
    ] = None,
    watch: Watch = None,
) -> None:
    """List the most recent calls, the newest first.

    Filters look through the 1000 most recent ones. On a narrow terminal year and worker are left out.
    """

    def look() -> Answer:
        wanted = _Wanted(status, tool, instance, None if since is None else wall_clock() - since * 1000)
        none = "There are no such calls." if agent or wanted.is_narrowed else "There are no calls."
        return _answer(_found(client, agent, wanted, limit), session.output, none)

    with session.client() as client:
        return give(look, session.output, watch)


def _answer(records: list[CallRecord], output: Output, none: str) -> Answer:
    document = [record.to_wire() for record in records]
    if not records:
        return Answer(document, None, (none,))
    rows = [_row(record, output) for record in records]
    return Answer(document, make_table(_COLUMNS, rows, unbroken="id", spare={"worker"}))


def _row(record: CallRecord, output: Output) -> tuple[object, ...]:
    call = record.call
    return (
        listed_time(record.queued_at, output),
        call.agent_name,
        call.tool_name,
        call.instance_key,
        outcome_of(record),
        duration_of(record),
        record.worker,
        listed_id(record.id, output),
    )


def _found(client: Client, agent: str | None, wanted: _Wanted, limit: int) -> list[CallRecord]:
    if agent is not None:
        client.catalog(agent)
    if not wanted.is_narrowed:
        return client.calls(agent, limit)
    return [record for record in client.calls(agent, SEARCHED) if wanted.fits(record)][:limit]
