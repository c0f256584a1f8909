"""``goondan queues``: how every agent's queue stands."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.table import Table

from goondan_tasks.cli.agents import NO_AGENT
from goondan_tasks.cli.answer import Answer
from goondan_tasks.cli.output import make_table
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.watching import Watch, give
from goondan_tasks.client import Client
from goondan_tasks.client.queue_status import QueueStatus

_COLUMNS = ("agent", "queue", "backlog", "running", "waiting for limit", "pending", "oldest", "workers")
#: what most systems have none of: a column each, where there is one
_RARE: dict[str, Callable[[QueueStatus], int]] = {
    "mailboxes": lambda status: status.mailboxes,
    "dead letters": lambda status: status.dead_letters,
}


@takes_session
def queues(
    session: Session,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only the queues of this agent.")] = None,
    watch: Watch = None,
) -> None:
    """Show how every agent's queue stands: what waits, what runs, how many workers serve it.

    Mailboxes and dead letters have columns where there are any. On a narrow terminal the queues' names are
    left out: they are the agents' behind "agent.".
    """
    with session.client() as client:
        if agent is not None:
            client.catalog(agent)
        return give(lambda: _answer(_rows(client, agent)), session.output, watch)


def _answer(rows: list[QueueStatus]) -> Answer:
    document = [row.model_dump(by_alias=True) for row in rows]
    return Answer(document, _table(rows)) if rows else Answer(document, None, (NO_AGENT,))


def _rows(client: Client, agent: str | None) -> list[QueueStatus]:
    return [status for status in client.queues() if agent in {None, status.agent}]


def _table(rows: list[QueueStatus]) -> Table:
    rare = {name: count for name, count in _RARE.items() if any(map(count, rows))}
    cells = [(*_cells(status), *(count(status) for count in rare.values())) for status in rows]
    return make_table((*_COLUMNS, *rare), cells, spare={"queue"})


def _cells(status: QueueStatus) -> tuple[object, ...]:
    oldest = None if status.oldest_seconds is None else f"{status.oldest_seconds:.0f} s"
    return (
        status.agent,
        status.queue,
        status.backlog,
        status.running,
        status.waiting_for_limit,
        status.pending,
        oldest,
        status.workers,
    )
