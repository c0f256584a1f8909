"""Calls that need a person's decision: ``goondan approvals`` and ``goondan dead-letters``."""

import getpass
import json
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, show_result, whole_id
from goondan_tasks.cli.options import CallId, CallIds, OfAgent, OfTool, Yes, parse_seconds
from goondan_tasks.cli.output import listing, make_table
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import Client
from goondan_tasks.client.submitter import may_be_replayed
from goondan_tasks.ledger.dead_letters import LetterFilter
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import JsonObject

By = Annotated[str | None, typer.Option(metavar="NAME", help="Who answers for it; default: your login name.")]
Letters = Annotated[
    list[str] | None, typer.Argument(metavar="IDS", help="The calls; else those of a filter, or --all.")
]
OlderThan = Annotated[
    float | None,
    typer.Option(parser=parse_seconds, metavar="S", help="Only those that died at least S seconds ago."),
]
NewerThan = Annotated[
    float | None,
    typer.Option(parser=parse_seconds, metavar="S", help="Only those that died at most S seconds ago."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@takes_session
def list_approvals(session: Session, agent: OfAgent = None) -> None:
    """List the calls that wait for an approval, with their arguments; `goondan result ID` shows one."""
    output = session.output
    with session.client() as client:
        if agent is not None:
            client.catalog(agent)
        waiting = client.approvals(agent)
    columns = {
        "since": lambda one: output.time(one.suspended_at),
        "until": lambda one: output.time(one.expires_at),
        **CALL_COLUMNS,
        "arguments": lambda one: json.dumps(one.call.args, ensure_ascii=False),
        "id": lambda one: output.call_id(one.id),
    }
    none = "No call waits for an approval."
    output.write(listing(waiting, columns, wire=_with_arguments, none=none, unbroken="id"))


@takes_session
def approve(session: Session, ids: CallIds, by: By = None) -> None:
    """Approve calls that wait for it: they run."""
    who = _login() if by is None else by
    _decide(session, ids, "approve", "approved", who, lambda client, call_id: client.approve(call_id, who))


@takes_session
def deny(
    session: Session,
    ids: CallIds,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why they are denied.")] = "",
    by: By = None,
) -> None:
    """Deny calls that wait for an approval: they end with E_APPROVAL_DENIED, which says why and by whom."""
    who = _login() if by is None else by
    _decide(session, ids, "deny", "denied", who, lambda client, call_id: client.deny(call_id, reason, who))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which dead letters are meant: those of these ids, else those that pass the filter."""

    ids: tuple[str, ...]
    agent: str | None
    wanted: LetterFilter

    @classmethod
    def of(
        cls, ids: list[str] | None, agent: str | None, wanted: LetterFilter, *, everything: bool
    ) -> "_Choice":
        is_filtered = everything or any(value is not None for value in (agent, *wanted.values()))
        if bool(ids) == is_filtered:
            raise typer.BadParameter("name calls by their ids, or by a filter such as --agent, or --all.")
        return cls(tuple(ids or ()), agent, wanted)

    def letters(self, client: Client) -> list[CallRecord]:
        found = client.dead_letters(self.agent, None, **self.wanted)
        if not found and self.agent is not None:
            client.catalog(self.agent)  # an unknown agent is misspelt
        return found


@takes_session
def list_letters(
    session: Session,
    agent: OfAgent = None,
    tool: OfTool = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
) -> None:
    """List the calls whose every run killed its worker, and the messages without a call."""
    output = session.output
    wanted = LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than)
    with session.client() as client:
        letters = _Choice((), agent, wanted).letters(client)
    columns = {
        "died": lambda letter: output.time(letter.finished_at),
        **CALL_COLUMNS,
        "attempts": lambda letter: letter.attempt,
        "replayed as": lambda letter: output.call_id(letter.replayed_by),
        "id": lambda letter: output.call_id(letter.id),
    }
    none = "There are no dead letters."
    output.write(listing(letters, columns, wire=CallRecord.to_wire, none=none, unbroken="id"))


@takes_session
def show(session: Session, call_id: CallId) -> None:
    """Show a dead letter with its arguments and its result."""
    output = session.output
    with session.client() as client:
        letter = client.dead_letter(whole_id(client, call_id))
        result = client.pending(letter.id).result(0)
    # what lets the call act for a user is not for display
    call = letter.call.model_copy(update={"auth": None}).to_wire()
    if output.as_json:
        return output.document({**letter.to_wire(), "call": call, "result": result.to_wire()})
    facts = {**letter.to_wire(), "args": json.dumps(letter.call.args, ensure_ascii=False)}
    output.print(make_table(("field", "value"), list(facts.items())))
    return show_result(result, output)


@takes_session
def replay(
    session: Session,
    ids: Letters = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    again: Annotated[
        bool, typer.Option("--again", help="Replay calls, named by their ids, that were replayed before.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Submit calls again, each as a new call that does the same; its result names the old one.

    A call that was replayed before is refused. By its id, any call that ended with an error can be replayed.
    """
    wanted = LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than)
    choice = _Choice.of(ids, agent, wanted, everything=everything)
    if again and not choice.ids:
        raise typer.BadParameter("--again goes with ids.")
    with session.client() as client:
        if choice.ids:
            whole = [whole_id(client, call_id) for call_id in choice.ids]
            replays = {call_id: client.replay(call_id, again=again) for call_id in whole}
        else:
            count = sum(map(may_be_replayed, choice.letters(client)))
            session.confirm(f"Replay {count} dead letters", is_confirmed=yes or not count)
            replays = client.replay_all(choice.agent, **choice.wanted)
    columns = {"id": itemgetter("id"), "replayed as": itemgetter("replayedBy")}
    wire = [{"id": old, "replayedBy": new.id} for old, new in replays.items()]
    session.output.write(listing(wire, columns, none="There is nothing to replay."))


@takes_session
def drop(
    session: Session,
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
    choice = _Choice.of(ids, agent, wanted, everything=everything)
    with session.client() as client:
        if choice.ids:
            for call_id in choice.ids:
                client.drop(whole_id(client, call_id))
            count = len(choice.ids)
        else:
            found = len(choice.letters(client))
            session.confirm(f"Drop {found} dead letters", is_confirmed=yes or not found)
            count = client.drop_all(choice.agent, **choice.wanted)
    session.output.give({"dropped": count}, f"dropped {count}")


def _decide(
    session: Session, ids: list[str], decision: str, done: str, who: str, act: Callable[[Client, str], object]
) -> None:
    with session.client() as client:
        decided = [whole_id(client, call_id) for call_id in ids]
        for call_id in decided:
            act(client, call_id)
            if not session.output.as_json:
                session.output.print(f"{done} {call_id}")
    if session.output.as_json:
        session.output.document([{"id": call_id, "decision": decision, "by": who} for call_id in decided])


def _with_arguments(record: CallRecord) -> JsonObject:
    return {**record.to_wire(), "args": record.call.args}


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""
