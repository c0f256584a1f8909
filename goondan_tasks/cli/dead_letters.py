"""``goondan dead-letters``: list, show, replay or drop calls that killed their workers."""

import json
from operator import itemgetter
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, Columns, show_result, whole_id
from goondan_tasks.cli.completion import complete_call
from goondan_tasks.cli.options import (
    CallId,
    OfAgent,
    OfTool,
    Yes,
    argument,
    flag,
    seconds_option,
)
from goondan_tasks.cli.output import listing, make_table
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.client import Client
from goondan_tasks.client.submitter import may_be_replayed
from goondan_tasks.ledger.dead_letters import LetterFilter
from goondan_tasks.ledger.record import CallRecord

Letters = Annotated[
    list[str] | None,
    argument("IDS", "The calls; else those of a filter, or --all.", autocompletion=complete_call),
]
OlderThan = Annotated[float | None, seconds_option("Only those that died at least S seconds ago.")]
NewerThan = Annotated[float | None, seconds_option("Only those that died at most S seconds ago.")]
All = Annotated[bool, flag("All of them.", "--all")]


@takes_client
def list_letters(
    session: Session,
    client: Client,
    agent: OfAgent = None,
    tool: OfTool = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
) -> None:
    """List the calls whose every run killed its worker, and the messages without a call."""
    output = session.output
    letters = _letters(client, agent, LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than))
    columns: Columns = {
        "died": lambda letter: output.time(letter.finished_at),
        **CALL_COLUMNS,
        "attempts": lambda letter: letter.attempt,
        "replayed as": lambda letter: output.call_id(letter.replayed_by),
        "id": lambda letter: output.call_id(letter.id),
    }
    none = "There are no dead letters."
    output.write(listing(letters, columns, wire=CallRecord.to_wire, none=none, unbroken="id"))


@takes_client
def show(session: Session, client: Client, call_id: CallId) -> None:
    """Show a dead letter with its arguments and its result."""
    output, letter = session.output, client.dead_letter(whole_id(client, call_id))
    result = client.pending(letter.id).result(0)
    if output.as_json:
        # what lets the call act for a user is not for display
        call = letter.call.model_copy(update={"auth": None}).to_wire()
        return output.document({**letter.to_wire(), "call": call, "result": result.to_wire()})
    facts = {**letter.to_wire(), "args": json.dumps(letter.call.args, ensure_ascii=False)}
    output.print(make_table(("field", "value"), list(facts.items())))
    return show_result(result, output)


@takes_client
def replay(
    session: Session,
    client: Client,
    ids: Letters = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    again: Annotated[
        bool, flag("Replay calls, named by their ids, that were replayed before.", "--again")
    ] = False,
    yes: Yes = False,
) -> None:
    """Submit calls again, each as a new call that does the same; its result names the old one.

    A call that was replayed before is refused. By its id, any call that ended with an error can be replayed.
    """
    wanted = LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than)
    _require_choice(ids, agent, wanted, everything=everything)
    if again and not ids:
        raise typer.BadParameter("--again goes with ids.")
    if ids:
        whole = [whole_id(client, call_id) for call_id in ids]
        replays = {call_id: client.replay(call_id, again=again) for call_id in whole}
    else:
        count = sum(map(may_be_replayed, _letters(client, agent, wanted)))
        session.confirm(f"Replay {count} dead letters", is_confirmed=yes or not count)
        replays = client.replay_all(agent, **wanted)
    columns = {"id": itemgetter("id"), "replayed as": itemgetter("replayedBy")}
    wire = [{"id": old, "replayedBy": new.id} for old, new in replays.items()]
    session.output.write(listing(wire, columns, none="There is nothing to replay."))


@takes_client
def drop(
    session: Session,
    client: Client,
    ids: Letters = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    yes: Yes = False,
) -> None:
    """Drop dead letters: they are no longer listed, and their results stay."""
    wanted = LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than)
    _require_choice(ids, agent, wanted, everything=everything)
    if ids:
        for call_id in ids:
            client.drop(whole_id(client, call_id))
        count = len(ids)
    else:
        found = len(_letters(client, agent, wanted))
        session.confirm(f"Drop {found} dead letters", is_confirmed=yes or not found)
        count = client.drop_all(agent, **wanted)
    session.output.give({"dropped": count}, f"dropped {count}")


def _letters(client: Client, agent: str | None, wanted: LetterFilter) -> list[CallRecord]:
    found = client.dead_letters(agent, None, **wanted)
    if not found and agent is not None:
        client.catalog(agent)  # raises for an unknown agent, whose name is misspelt
    return found


def _require_choice(
    ids: list[str] | None, agent: str | None, wanted: LetterFilter, *, everything: bool
) -> None:
    is_filtered = everything or any(value is not None for value in (agent, *wanted.values()))
    if bool(ids) == is_filtered:
        raise typer.BadParameter("name calls by their ids, or by a filter such as --agent, or --all.")
