"""``goondan queues``: how every agent's queue stands."""

from typing import Annotated

import typer
from rich.table import Table

from goondan_tasks.cli.output import make_table
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.watching import REFRESH_SECONDS, watch_screen
from goondan_tasks.client import Client
from goondan_tasks.client.queue_status import QueueStatus

_COLUMNS = ("agent", "queue", "backlog", "running", "waiting for limit", "pending", "oldest", "workers")


@takes_session
def queues(
    session: Session,
    watch: Annotated[
        bool, typer.Option("--watch", help=f"Look again every {REFRESH_SECONDS:g} s, until Ctrl-C.")
    ] = False,
) -> None:
    """Show how every agent's queue stands: what waits, what runs, how many workers serve it."""
    if watch and session.output.as_json:
        raise typer.BadParameter("--watch is for people; without it --json prints one document.")
    with session.client() as client:
        if watch:
            return watch_screen(lambda: _table(client))
        if session.output.as_json:
            return session.output.document([row.model_dump(by_alias=True) for row in client.queues()])
        return session.output.print(_table(client))


def _table(client: Client) -> Table:
    return make_table(_COLUMNS, [_row(status) for status in client.queues()])


def _row(status: QueueStatus) -> tuple[object, ...]:
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
