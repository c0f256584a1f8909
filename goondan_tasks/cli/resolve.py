"""``goondan resolve``: complete a pending call."""

from typing import Annotated

import typer

from goondan_tasks.cli.call_id_argument import CallId, whole_id
from goondan_tasks.cli.json_argument import parse_json
from goondan_tasks.cli.session import Session, takes_session


@takes_session
def resolve(
    session: Session,
    call_id: CallId,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="JSON text, @FILE, or - for stdin.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="End the call with an error that says so.")
    ] = None,
) -> None:
    """Complete a pending call with its output, VALUE, or with an error.

    Ends with 2 if somebody has completed it before, if it has expired, or if it is not pending.
    """
    if (value is None) == (error is None):
        raise typer.BadParameter("a call ends either with VALUE or with --error.")
    output = None if value is None else parse_json(value)
    with session.client() as client:
        found = whole_id(client, call_id)
        if error is None:
            client.resolve(found, output)
        else:
            client.fail(found, error)
        record = client.record(found)
    if session.output.as_json:
        return session.output.document(record.to_wire())
    ending = "completed" if record.status == "done" else "will be completed as soon as its handler returns"
    return session.output.print(f"{record.call.tool_name} of {record.call.agent_name}: {ending}")
