"""``goondan approvals``: calls that wait until somebody allows them."""

import getpass
import json
from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.call_id_argument import listed_id, whole_id
from goondan_tasks.cli.call_view import local_time
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import Client
from goondan_tasks.ledger.record import CallRecord


class Action(StrEnum):
    """What is to be done."""

    LIST = "list"
    APPROVE = "approve"
    DENY = "deny"


@takes_session
def approvals(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="list, approve or deny.")],
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help="Calls, for approve and deny.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="A", help="List only those of this agent.")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why they are denied.")] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who answers for it; default: your login name.")
    ] = None,
) -> None:
    """Look at the calls that wait for an approval; approve them, and they run, or deny them.

    A denied call ends with E_APPROVAL_DENIED, which says why and by whom.
    """
    _require_fit(action, ids, agent, reason)
    with session.client() as client:
        if action is Action.LIST:
            return _list(client, agent, session.output)
        who = _login() if by is None else by
        decided = [whole_id(client, call_id) for call_id in ids or ()]
        for call_id in decided:
            if action is Action.APPROVE:
                client.approve(call_id, who)
            else:
                client.deny(call_id, reason or "", who)
            if not session.output.as_json:
                session.output.print(f"{'approved' if action is Action.APPROVE else 'denied'} {call_id}")
    if session.output.as_json:
        session.output.document([{"id": call_id, "decision": action, "by": who} for call_id in decided])
    return None


def _require_fit(action: Action, ids: list[str] | None, agent: str | None, reason: str | None) -> None:
    if action is Action.LIST and ids:
        raise typer.BadParameter("list takes no ids; `goondan result ID` shows one call.")
    if action is not Action.LIST and not ids:
        raise typer.BadParameter(f"name the calls to {action}, as `goondan approvals list` lists them.")
    if action is not Action.LIST and agent is not None:
        raise typer.BadParameter("--agent goes with list.")
    if action is not Action.DENY and reason is not None:
        raise typer.BadParameter("--reason goes with deny.")


def _list(client: Client, agent: str | None, output: Output) -> None:
    if agent is not None:
        client.catalog(agent)
    waiting = client.approvals(agent)
    if output.as_json:
        return output.document([{**record.to_wire(), "args": record.call.args} for record in waiting])
    return output.table(
        ("since", "until", "agent", "tool", "instance", "arguments", "id"),
        [_row(record, output) for record in waiting],
        unbroken="id",
        none="No call waits for an approval.",
    )


def _row(record: CallRecord, output: Output) -> tuple[object, ...]:
    call = record.call
    arguments = json.dumps(call.args, ensure_ascii=False)
    since, until = (None if at is None else local_time(at) for at in (record.suspended_at, record.expires_at))
    call_id = listed_id(record.id, output)
    return since, until, call.agent_name, call.tool_name, call.instance_key, arguments, call_id


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""
