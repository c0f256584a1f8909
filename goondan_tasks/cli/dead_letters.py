"""The commands for dead letters: list, show, replay and drop them."""

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, show_result, whole_id
from goondan_tasks.cli.options import (
    All,
    CallId,
    DryRun,
    Ids,
    NewerThan,
    OfAgent,
    OfInstance,
    OfTool,
    OlderThan,
    Yes,
    flag,
)
from goondan_tasks.cli.output import Columns, listing, make_table
from goondan_tasks.cli.selection import Selection, require_choice
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.client.submitter import may_be_replayed
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.wording import counted
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.record import CallRecord


@takes_client
def list_letters(
    session: Session,
    client: Client,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
) -> None:
    """List the calls that killed their worker in every run, and the messages without a call."""
    output = session.output
    wanted = CallFilter(tool=tool, instance=instance, older_than=older_than, newer_than=newer_than)
    letters = _letters(client, agent, wanted)
    columns: Columns[CallRecord] = {
        "died": lambda letter: output.time(letter.finished_at),
        **CALL_COLUMNS,
        "attempts": lambda letter: letter.attempt,
        "replayed as": lambda letter: output.call_id(letter.replayed_by),
        "id": lambda letter: output.call_id(letter.id),
    }
    none = "There are no dead letters."
    output.write(listing(letters, columns, wire=CallRecord.to_wire, none=none, unbroken="id"))


@takes_client
def show_letter(session: Session, client: Client, call_id: CallId) -> None:
    """Show a dead letter with its arguments and its result."""
    output, letter = session.output, client.dead_letter(whole_id(client, call_id))
    result = client.pending(letter.id).result(0)
    if output.as_json:
        # auth lets the call act for a user, and is not displayed
        call = letter.call.model_copy(update={"auth": None}).to_wire()
        return output.document({**letter.to_wire(), "call": call, "result": result.to_wire()})
    facts = {**letter.to_wire(), "args": json.dumps(letter.call.args, ensure_ascii=False)}
    output.print(make_table(("field", "value"), list(facts.items())))
    return show_result(result, output)


@takes_client
def replay(
    session: Session,
    client: Client,
    ids: Ids = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    again: Annotated[
        bool, flag("Also replay calls that were replayed before; goes with IDS.", "--again")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Submit dead letters again, each as a new call, whose result names the old one.

    A call that was replayed before is refused. By its id, any call that ended with an error can be replayed.
    """
    wanted = CallFilter(tool=tool, instance=instance, older_than=older_than, newer_than=newer_than)
    require_choice(ids, agent, wanted, everything=everything)
    if again and not ids:
        raise typer.BadParameter("--again goes with IDS.")
    if dry_run:
        letters = _chosen_letters(client, ids, agent, wanted)
        return _selected(one for one in letters if ids or may_be_replayed(one)).show(
            session.output, none="There is nothing to replay."
        )
    if ids:
        replays = _replay(session, client, [whole_id(client, call_id) for call_id in ids], again=again)
    else:
        count = sum(map(may_be_replayed, _letters(client, agent, wanted)))
        session.confirm(f"Replay {counted(count, 'dead letter')}", is_confirmed=yes or not count)
        replays = client.replay_all(agent, **wanted)
    columns = {"id": itemgetter("id"), "replayed as": itemgetter("replayedBy")}
    wire = [{"id": old, "replayedBy": new.id} for old, new in replays.items()]
    return session.output.write(listing(wire, columns, none="There is nothing to replay."))


@takes_client
def drop(
    session: Session,
    client: Client,
    ids: Ids = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Drop dead letters: they are no longer listed, but their results stay."""
    wanted = CallFilter(tool=tool, instance=instance, older_than=older_than, newer_than=newer_than)
    require_choice(ids, agent, wanted, everything=everything)
    if dry_run:
        letters = _chosen_letters(client, ids, agent, wanted)
        return _selected(letters).show(session.output, none="There is nothing to drop.")
    if ids:
        for call_id in ids:
            client.drop(whole_id(client, call_id))
        count = len(ids)
    else:
        found = len(_letters(client, agent, wanted))
        session.confirm(f"Drop {counted(found, 'dead letter')}", is_confirmed=yes or not found)
        count = client.drop_all(agent, **wanted)
    return session.output.give({"dropped": count}, f"dropped {count}")


def _replay(
    session: Session, client: Client, call_ids: Sequence[str], *, again: bool
) -> dict[str, PendingCall]:
    """Replay calls up to the first that is refused; those before it run, and are named beside the error."""
    replays: dict[str, PendingCall] = {}
    for call_id in call_ids:
        try:
            replays[call_id] = client.replay(call_id, again=again)
        except GoondanError:
            for old, new in replays.items():
                session.output.note(f"{old} was replayed as {new.id}.")
            raise
    return replays


def _selected(records: Iterable[CallRecord]) -> Selection:
    selection = Selection()
    for record in records:
        selection.add(record)
    return selection


def _chosen_letters(
    client: Client, ids: Sequence[str] | None, agent: str | None, wanted: CallFilter
) -> list[CallRecord]:
    if ids:
        return [client.record(whole_id(client, call_id)) for call_id in ids]
    return _letters(client, agent, wanted)


def _letters(client: Client, agent: str | None, wanted: CallFilter) -> list[CallRecord]:
    found = client.dead_letters(agent, None, **wanted)
    if not found and agent is not None:
        client.catalog(agent)  # raises for an unknown agent
    return found
