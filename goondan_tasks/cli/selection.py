"""Selections of calls by a filter, shown before something is done to them; ``goondan cancel``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, call_name, styled_state, whole_id
from goondan_tasks.cli.options import (
    All,
    DryRun,
    Ids,
    NewerThan,
    OfAgent,
    OfInstance,
    OfTool,
    OlderThan,
    Yes,
)
from goondan_tasks.cli.output import Columns, Content, Output, make_table, show_progress
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.client import Client
from goondan_tasks.contract.wording import counted
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.record import CallRecord

#: how many calls of a selection are shown
MOST_SHOWN = 20


class OpenStatus(StrEnum):
    """The statuses of calls that have not ended; waiting calls are queued, too."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    WAITING = "waiting"
    RUNNING = "running"
    PENDING = "pending"


@takes_client
def cancel(
    session: Session,
    client: Client,
    ids: Ids = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    status: Annotated[OpenStatus | None, typer.Option(help="Only those with this status.")] = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel calls that have not ended, events included: they end with E_TOOL_CANCELLED.

    A queued or scheduled call never runs; a running one ends within a second. A filter shows what it selects,
    and asks.
    """
    wanted = CallFilter(
        tool=tool, instance=instance, status=status, older_than=older_than, newer_than=newer_than
    )
    require_choice(ids, agent, wanted, everything=everything)
    if ids:
        if dry_run:
            raise typer.BadParameter("--dry-run goes with a filter or --all.")
        return _cancel_each(session, client, [whole_id(client, call_id) for call_id in ids])
    found = Selection()
    selected = client.cancel_all(agent, dry_run=True, watch=found.add, **wanted)
    if dry_run or not selected:
        return found.show(session.output, none="There is nothing to cancel.")
    if not session.output.as_json:
        found.note(session.output)
    session.confirm(f"Cancel {counted(len(selected), 'call')}", is_confirmed=yes)

    def watch(done: int) -> None:
        if not session.output.as_json:
            show_progress(done, len(selected), " calls", is_last=done == len(selected))

    cancelled = client.cancel_many(selected, watch=watch)
    missed = len(selected) - len(cancelled)
    text = f"cancelled {len(cancelled)}" + (f"; {missed} had ended meanwhile" if missed else "")
    return session.output.give({"cancelled": cancelled}, text)


def _cancel_each(session: Session, client: Client, call_ids: Sequence[str]) -> None:
    """Cancel calls up to the first that is refused; those before it are cancelled, and shown."""
    records = []
    for call_id in call_ids:
        client.cancel(call_id)
        record = client.record(call_id)
        records.append(record)
        ending = "cancelled" if record.status == "done" else "its worker was told to end it"
        if not session.output.as_json:
            session.output.print(f"{call_name(record)}: {ending}")
    if session.output.as_json:
        wire = [record.to_wire() for record in records]
        session.output.document(wire[0] if len(wire) == 1 else wire)


class Selection:
    """The calls that a filter selects: their ids, the first of them, and their numbers."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._first: list[CallRecord] = []
        self._counts = Counter[tuple[str, str, str]]()

    def add(self, record: CallRecord) -> None:
        """Add a call."""
        self._ids.append(record.id)
        if len(self._first) < MOST_SHOWN:
            self._first.append(record)
        self._counts[record.call.agent_name, record.call.tool_name, record.state] += 1

    def show(self, output: Output, none: str) -> None:
        """Write the selection as the answer."""
        if output.as_json:
            names = ("agent", "tool", "state")
            counts = [dict(zip(names, key, strict=True), calls=n) for key, n in self._counts.items()]
            return output.document({"calls": self._ids, "counts": counts})
        if not self._ids:
            return output.note(none)
        for content in self._contents(output):
            output.print(content)
        return None

    def note(self, output: Output) -> None:
        """Write the selection before a question."""
        for content in self._contents(output):
            output.note(content)

    def _contents(self, output: Output) -> Iterator[Content]:
        columns: Columns[CallRecord] = {
            **CALL_COLUMNS,
            "state": lambda record: styled_state(record.state),
            "queued": lambda record: output.time(record.queued_at),
            "id": lambda record: output.call_id(record.id),
        }
        reads = [read for read in columns.values() if callable(read)]
        yield make_table(list(columns), [[read(one) for read in reads] for one in self._first], is_cut=True)
        if (more := len(self._ids) - len(self._first)) > 0:
            yield f"… and {more:,} more"
        rows = [(*key, count) for key, count in self._counts.most_common()]
        yield make_table(("agent", "tool", "state", "calls"), rows)


def require_choice(ids: list[str] | None, agent: str | None, wanted: CallFilter, *, everything: bool) -> None:
    """Require either ids, or a filter or ``--all``.

    Raises:
        typer.BadParameter: there are both, or neither.
    """
    is_filtered = everything or any(value is not None for value in (agent, *wanted.values()))
    if bool(ids) == is_filtered:
        raise typer.BadParameter("give the ids of calls, a filter such as --agent, or --all.")
