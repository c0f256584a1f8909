"""The commands for dead letters: list, show, replay and drop them."""

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, show_result, whole_id
from goondan_tasks.cli.options import CallId, OfAgent, flag
from goondan_tasks.cli.output import Columns, listing, make_table, show_progress
from goondan_tasks.cli.selection import Selection
from goondan_tasks.cli.session import Choice, Session, require_agent, takes_choice, takes_client, takes_filter
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.client.bulk import BulkAct, BulkResult
from goondan_tasks.client.submitter import may_be_replayed
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.wording import counted, on_one_line
from goondan_tasks.history.failures import FailureGroup, Failures
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.record import CallRecord


@takes_client
@takes_filter()
def list_letters(
    session: Session,
    client: Client,
    agent: OfAgent = None,
    *,
    wanted: CallFilter,
    group: Annotated[bool, flag("Count them by what their failures have in common.", "--group")] = False,
) -> None:
    """List the calls that killed their worker in every run, and the messages without a call.

    With --group, one row has all failures of a tool that have the same code and the same message, but for
    numbers, ids and quoted texts. Its fingerprint selects them.
    """
    output = session.output
    if group:
        older_than, newer_than = wanted.pop("older_than"), wanted.pop("newer_than")
        if any(one is not None for one in wanted.values()):
            raise typer.BadParameter("--group goes with --agent, --older-than and --newer-than only.")
        found = client.failures(agent, only_dead=True, older_than=older_than, newer_than=newer_than)
        return _list_groups(session, found)
    letters = _letters(client, agent, wanted)
    columns: Columns[CallRecord] = {
        "died": lambda letter: output.time(letter.finished_at),
        **CALL_COLUMNS,
        "attempts": lambda letter: letter.attempt,
        "replayed as": lambda letter: output.call_id(letter.replayed_by),
        "id": lambda letter: output.call_id(letter.id),
    }
    none = "There are no dead letters."
    return output.write(listing(letters, columns, wire=CallRecord.to_wire, none=none, unbroken="id"))


def _list_groups(session: Session, found: Failures) -> None:
    output = session.output
    columns: Columns[FailureGroup] = {
        "count": lambda one: one.count,
        "replayed": lambda one: one.replayed,
        "tool": lambda one: one.tool,
        "code": lambda one: one.code,
        "last": lambda one: output.time(epoch_milliseconds(one.last_at)),
        "message": lambda one: one.message,
        "fingerprint": lambda one: one.fingerprint,
    }
    output.write(
        listing(
            found.groups,
            columns,
            wire=FailureGroup.to_wire,
            none="There are no dead letters.",
            unbroken={"last", "fingerprint"},
        )
    )
    if found.counted < found.total:
        output.note(f"Counted are the latest {found.counted:,} of {found.total:,}.")


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
@takes_choice()
def replay(
    session: Session,
    client: Client,
    *,
    choice: Choice,
    again: Annotated[
        bool, flag("Also replay calls that were replayed before; goes with IDS.", "--again")
    ] = False,
) -> None:
    """Submit dead letters again, each as a new call, whose result names the old one.

    A call that was replayed before is refused. By its id, any call that ended with an error can be replayed.
    """
    if again and not choice.ids:
        raise typer.BadParameter("--again goes with IDS.")
    none = "There is nothing to replay."
    if choice.dry_run:
        letters = _chosen_letters(client, choice)
        found = Selection(one for one in letters if choice.ids or may_be_replayed(one))
        return found.show(session.output, none)
    if choice.ids:
        made = _replay(session, client, [whole_id(client, call_id) for call_id in choice.ids], again=again)
        replays = {old: new.id for old, new in made.items()}
    else:
        replays = _act_on_all(session, client, "replay", choice).replays
    columns = {"id": itemgetter("id"), "replayed as": itemgetter("replayedBy")}
    wire = [{"id": old, "replayedBy": new} for old, new in replays.items()]
    return session.output.write(listing(wire, columns, none=none))


@takes_client
@takes_choice()
def drop(session: Session, client: Client, *, choice: Choice) -> None:
    """Drop dead letters: they are no longer listed, but their results stay."""
    if choice.dry_run:
        found = Selection(_chosen_letters(client, choice))
        return found.show(session.output, none="There is nothing to drop.")
    for call_id in choice.ids:
        client.drop(whole_id(client, call_id))
    count = len(choice.ids) or _act_on_all(session, client, "drop", choice).done
    return session.output.give({"dropped": count}, f"dropped {count}")


def _act_on_all(session: Session, client: Client, act: BulkAct, choice: Choice) -> BulkResult:
    """Say what will be done, ask, and do it in batches; interrupted, the same command does the rest."""
    output, agent, wanted = session.output, choice.agent, choice.wanted
    planned = client.act_on_all(act, agent, dry_run=True, **wanted)
    if not planned.selected:
        require_agent(client, agent)
        return planned
    what = f"{act.capitalize()} {counted(planned.selected, 'dead letter')}"
    twice = f", {planned.not_idempotent:,} not known to be idempotent" if act == "replay" else ""
    session.confirm(f"{what} of {counted(len(planned.tools), 'tool')}{twice}", is_confirmed=choice.yes)

    def watch(done: int) -> None:
        if not output.as_json:
            show_progress(done, planned.selected, " dead letters", is_last=done >= planned.selected)

    # what comes while a person reads the question is left alone
    result = client.act_on_all(
        act, agent, between=planned.between, limit=planned.selected, watch=watch, **wanted
    )
    for fault in result.faults:
        output.note(on_one_line(f"{fault.id}: {fault.code}: {fault.message}"))
    if result.failed:
        output.note(f"It could not be done with {result.failed:,}; {result.done:,} are done.")
    return result


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


def _chosen_letters(client: Client, choice: Choice) -> list[CallRecord]:
    if choice.ids:
        return [client.record(whole_id(client, call_id)) for call_id in choice.ids]
    return _letters(client, choice.agent, choice.wanted)


def _letters(client: Client, agent: str | None, wanted: CallFilter) -> list[CallRecord]:
    found = client.dead_letters(agent, None, **wanted)
    if not found:
        require_agent(client, agent)
    return found
