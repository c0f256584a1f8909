"""``goondan follow``: the events of a Turn or call that runs, or ran a while ago."""

import math
import sys
from contextlib import closing
from dataclasses import replace
from typing import Annotated

import typer

from broker_config.connections import retrying
from goondan_tasks.authoring.handoff import handoff_error
from goondan_tasks.cli.calls import whole_id
from goondan_tasks.cli.live_output import TurnView, ending_text, note_stopped_waiting
from goondan_tasks.cli.options import CallId, flag, name_option
from goondan_tasks.cli.output import FAILED, Screen, describe_failure, pretty, write_failure
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.client import Client, FollowedEvent, TurnAccepted, TurnEnded
from goondan_tasks.client.following import FollowTerms
from goondan_tasks.client.reading import Position


@takes_client
def follow(
    session: Session,
    client: Client,
    call_id: CallId,
    after: Annotated[
        str | None, name_option("CURSOR", "Show only what comes after the event with this cursor.", "--after")
    ] = None,
    reasoning: Annotated[bool, flag("Show the model's reasoning, if it reports any.", "--reasoning")] = False,
) -> None:
    """Follow a Turn or a call by its id, and show its events until it ends. Ctrl-C leaves it running.

    With --json stdout gets all events, one per line, each with its cursor. The exit code is 1 if it failed.
    """
    call_id = whole_id(client, call_id)
    agent = client.record(call_id).call.agent_name
    terms = FollowTerms(cancel_on_close=False, is_asker=False, after=Position.of(after))
    follower = client.follower(call_id, lambda: client.pending(call_id), terms)
    live = Screen() if sys.stdout.isatty() else None
    ended: TurnEnded | None = None
    try:
        with (
            closing(follower.followed(ticks=True)) as events,
            closing(TurnView(client, agent, live=live, reasoning=reasoning)) as view,
        ):
            view.show(TurnAccepted(id=call_id))
            for one in events:
                with retrying(math.inf):
                    _show(session, view, one)
                if one is not None and isinstance(one.event, TurnEnded):
                    ended = one.event
    except KeyboardInterrupt:
        note_stopped_waiting(call_id)
        raise
    if ended is not None and ended.error is not None:
        if not session.output.as_json:
            error = describe_failure(handoff_error(ended.error))
            write_failure(error, replace(session.output, is_compact=True), label=error["code"])
        raise typer.Exit(FAILED)


def _show(session: Session, view: TurnView, one: FollowedEvent | None) -> None:
    if session.output.as_json:
        if one is not None:
            document = {**one.event.to_wire(), "cursor": one.cursor}
            replace(session.output, is_compact=True).document(document)
        return
    view.show(None if one is None else one.event)
    if one is not None and isinstance(one.event, TurnEnded):
        answer = one.event.result.response
        if one.event.error is None and not view.has_shown(answer):
            session.output.print(pretty(answer))
        if tokens := ending_text(one.event):
            session.output.note(tokens)
