"""``goondan calls``: the most recent calls."""

from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.call_id_argument import listed_id
from goondan_tasks.cli.call_view import duration_of, local_time, outcome_of
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import Client
from goondan_tasks.ledger.record import CallRecord

#: a filter looks through so many of the most recent calls
SEARCHED = 1000


class Status(StrEnum):
    """How a call stands; ``ok`` and ``error`` are the outcomes of those that are done."""

    QUEUED = "queued"
    RUNNING = "running"
    PENDING = "pending"
    DONE = "done"
    DEAD = "dead"
    OK = "ok"
    ERROR = "error"


@takes_session
def calls(
    session: Session,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only the calls of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=SEARCHED, metavar="N", help="At most so many.")] = 20,
    status: Annotated[
        Status | None, typer.Option(help=f"Only calls that stand so, of the {SEARCHED} most recent.")
    ] = None,
) -> None:
    """List the most recent calls, the newest first."""
    with session.client() as client:
        records = _found(client, agent, status, limit)
    output = session.output
    if output.as_json:
        return output.document([record.to_wire() for record in records])
    return output.table(
        ("queued", "agent", "tool", "instance", "status", "took", "worker", "id"),
        [
            (
                local_time(record.queued_at),
                record.call.agent_name,
                record.call.tool_name,
                record.call.instance_key,
                outcome_of(record),
                duration_of(record),
                record.worker,
                listed_id(record.id, output),
            )
            for record in records
        ],
        unbroken="id",
    )


def _found(client: Client, agent: str | None, status: Status | None, limit: int) -> list[CallRecord]:
    if agent is not None:
        client.catalog(agent)
    if status is None:
        return client.calls(agent, limit)
    recent = client.calls(agent, SEARCHED)
    return [record for record in recent if status in {record.status, record.outcome}][:limit]
