"""``goondan dead-letters``: calls whose every run killed its worker, and messages that hold no call."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.call_id_argument import listed_id, whole_id
from goondan_tasks.cli.call_view import local_time
from goondan_tasks.cli.confirmation import confirm
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.result_view import show_result
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import Client
from goondan_tasks.client.replay import may_be_replayed
from goondan_tasks.ledger.dead_letters import LetterFilter
from goondan_tasks.ledger.record import CallRecord


class Action(StrEnum):
    """What is to be done."""

    LIST = "list"
    SHOW = "show"
    REPLAY = "replay"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant: those of these ids, else those that pass the filter."""

    ids: tuple[str, ...]
    agent: str | None
    wanted: LetterFilter
    everything: bool

    def letters(self, client: Client) -> list[CallRecord]:
        """Find the letters that pass the filter."""
        found = client.dead_letters(self.agent, None, **self.wanted)
        if not found and self.agent is not None:
            client.catalog(self.agent)  # an agent that nobody knows is misspelt
        return found

    def require_fit(self, action: Action) -> None:
        """Refuse a choice that does not go with ``action``.

        Raises:
            typer.BadParameter: it does not.
        """
        given = (self.agent, *self.wanted.values())
        is_filtered = self.everything or any(value is not None for value in given)
        if self.ids and is_filtered:
            raise typer.BadParameter("name calls by their ids or by a filter, not by both.")
        if action is Action.LIST and self.ids:
            raise typer.BadParameter("list takes no ids; show takes one.")
        if action is Action.SHOW and len(self.ids) != 1:
            raise typer.BadParameter("show takes the id of one call.")
        if action in {Action.REPLAY, Action.DROP} and not (self.ids or is_filtered):
            raise typer.BadParameter(f"{action} takes ids, a filter such as --agent, or --all.")


@takes_session
def dead_letters(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="list, show, replay or drop.")],
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help="Calls, for show, replay and drop.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only those of this agent.")] = None,
    tool: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only those of tools such as 'image__*'.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(parser=parse_seconds, metavar="S", help="Only those that died at least S seconds ago."),
    ] = None,
    newer_than: Annotated[
        float | None,
        typer.Option(parser=parse_seconds, metavar="S", help="Only those that died at most S seconds ago."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, for replay and drop.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Replay calls, named by their ids, that were replayed before.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before many are replayed or dropped.")
    ] = False,
) -> None:
    """Look at calls whose every run killed its worker and messages without a call: list, show, replay, drop.

    A replay is a new call that does the same; its result names the old one. It is refused for a call that
    was replayed before. By its id, any call that has ended with an error can be replayed.
    """
    wanted = LetterFilter(tool=tool, older_than=older_than, newer_than=newer_than)
    choice = Choice(tuple(ids or ()), agent, wanted, everything)
    choice.require_fit(action)
    with session.client() as client:
        match action:
            case Action.LIST:
                _list(choice.letters(client), session.output)
            case Action.SHOW:
                _show(client, whole_id(client, choice.ids[0]), session.output)
            case Action.REPLAY:
                _replay(client, choice, session.output, again=again, yes=yes)
            case Action.DROP:
                _drop(client, choice, session.output, yes=yes)


def _list(letters: list[CallRecord], output: Output) -> None:
    if output.as_json:
        return output.document([letter.to_wire() for letter in letters])
    return output.table(
        ("died", "agent", "tool", "instance", "attempts", "replayed as", "id"),
        [
            (
                None if letter.finished_at is None else local_time(letter.finished_at),
                letter.call.agent_name,
                letter.call.tool_name,
                letter.call.instance_key,
                letter.attempt,
                letter.replayed_by and listed_id(letter.replayed_by, output),
                listed_id(letter.id, output),
            )
            for letter in letters
        ],
        unbroken="id",
        none="There are no dead letters.",
    )


def _show(client: Client, call_id: str, output: Output) -> None:
    letter = client.dead_letter(call_id)
    result = client.pending(call_id).result(0)
    # what lets the call act for somebody is nothing to look at
    call = letter.call.model_copy(update={"auth": None}).to_wire()
    if output.as_json:
        return output.document({**letter.to_wire(), "call": call, "result": result.to_wire()})
    facts = {**letter.to_wire(), "args": json.dumps(letter.call.args, ensure_ascii=False)}
    output.table(("field", "value"), list(facts.items()))
    return show_result(result, output)


def _replay(client: Client, choice: Choice, output: Output, *, again: bool, yes: bool) -> None:
    if choice.ids:
        whole = [whole_id(client, call_id) for call_id in choice.ids]
        replays = {call_id: client.replay(call_id, again=again) for call_id in whole}
    elif again:
        raise typer.BadParameter("--again goes with ids.")
    else:
        unreplayed = [letter for letter in choice.letters(client) if may_be_replayed(letter)]
        confirm(f"Replay {len(unreplayed)} dead letters", output, is_confirmed=yes or not unreplayed)
        replays = client.replay_all(choice.agent, **choice.wanted)
    if output.as_json:
        return output.document([{"id": old, "replayedBy": new.id} for old, new in replays.items()])
    return output.table(
        ("id", "replayed as"),
        [(old, new.id) for old, new in replays.items()],
        none="There is nothing to replay.",
    )


def _drop(client: Client, choice: Choice, output: Output, *, yes: bool) -> None:
    if choice.ids:
        for call_id in choice.ids:
            client.drop(whole_id(client, call_id))
        count = len(choice.ids)
    else:
        found = len(choice.letters(client))
        confirm(f"Drop {found} dead letters", output, is_confirmed=yes or not found)
        count = client.drop_all(choice.agent, **choice.wanted)
    return output.document({"dropped": count}) if output.as_json else output.print(f"dropped {count}")
