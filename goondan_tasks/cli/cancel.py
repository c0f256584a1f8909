"""``goondan cancel``: end a call before it has its result."""

from typing import Annotated

import typer

from goondan_tasks.cli.session import Session, takes_session


@takes_session
def cancel(
    session: Session,
    call_id: Annotated[str, typer.Argument(metavar="ID", help="The call's id, as `goondan calls` lists it.")],
) -> None:
    """Cancel a call, queued or running: its result will be E_TOOL_CANCELLED.

    A queued call never runs; a running one ends as soon as its worker hears of it, well within a second.
    """
    with session.client() as client:
        client.cancel(call_id)
        record = client.record(call_id)
    if session.output.as_json:
        return session.output.document(record.to_wire())
    ending = "cancelled" if record.status == "done" else "its worker is told to end it"
    return session.output.print(f"{record.call.tool_name} of {record.call.agent_name}: {ending}")
