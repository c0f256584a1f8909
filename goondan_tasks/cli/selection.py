"""Selections of calls by a filter, shown before something is done to them; ``goondan cancel``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, call_name, styled_state, whole_id
from goondan_tasks.cli.output import Columns, Content, Output, make_table, show_progress
from goondan_tasks.cli.session import Choice, Session, takes_choice, takes_client
from goondan_tasks.client import Client
from goondan_tasks.contract.wording import counted
from goondan_tasks.ledger.call_filter import OpenStatus
from goondan_tasks.ledger.record import CallRecord

#: how many calls of a selection are shown
MOST_SHOWN = 20
OfOpenStatus = Annotated[OpenStatus | None, typer.Option("--status", help="Only those with this status.")]


@takes_client
@takes_choice("tool", "instance", "older_than", "newer_than", status=OfOpenStatus)
def cancel(session: Session, client: Client, *, choice: Choice) -> None:
    """Cancel calls that have not ended, events included: they end with E_TOOL_CANCELLED.

    A queued or scheduled call never runs; a running one ends within a second. A filter shows what it selects,
    and asks.
    """
    choice.require_no_preview()
    if choice.ids:
        return _cancel_each(session, client, [whole_id(client, call_id) for call_id in choice.ids])
    found, output = Selection(), session.output
    client.cancel_all(choice.agent, dry_run=True, watch=found.add, **choice.wanted)
    if not confirmed(session, choice, found, "Cancel", none="There is nothing to cancel."):
        return None

    def watch(done: int) -> None:
        if not output.as_json:
            show_progress(done, len(found.ids), " calls", is_last=done == len(found.ids))

    cancelled = client.cancel_many(found.ids, watch=watch)
    missed = len(found.ids) - len(cancelled)
    text = f"cancelled {len(cancelled)}" + (f"; {missed} had ended meanwhile" if missed else "")
    return output.give({"cancelled": cancelled}, text)


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

    def __init__(self, records: Iterable[CallRecord] = ()) -> None:
        self.ids: list[str] = []
        self._first: list[CallRecord] = []
        self._counts = Counter[tuple[str, str, str]]()
        for record in records:
            self.add(record)

    def add(self, record: CallRecord) -> None:
        """Add a call."""
        self.ids.append(record.id)
        if len(self._first) < MOST_SHOWN:
            self._first.append(record)
        self._counts[record.call.agent_name, record.call.tool_name, record.state] += 1

    def show(self, output: Output, none: str) -> None:
        """Write the selection as the answer."""
        if output.as_json:
            names = ("agent", "tool", "state")
            counts = [dict(zip(names, key, strict=True), calls=n) for key, n in self._counts.items()]
            return output.document({"calls": self.ids, "counts": counts})
        if not self.ids:
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
        if (more := len(self.ids) - len(self._first)) > 0:
            yield f"… and {more:,} more"
        rows = [(*key, count) for key, count in self._counts.most_common()]
        yield make_table(("agent", "tool", "state", "calls"), rows)


def confirmed(session: Session, choice: Choice, found: Selection, verb: str, *, none: str) -> bool:
    """Show what a filter selects; return whether to do it: there is something, and the answer is yes."""
    if choice.dry_run or not found.ids:
        found.show(session.output, none)
        return False
    if not session.output.as_json:
        found.note(session.output)
    session.confirm(f"{verb} {counted(len(found.ids), 'call')}", is_confirmed=choice.yes)
    return True
