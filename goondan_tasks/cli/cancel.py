"""``goondan cancel``: end a call before it has its result."""

from goondan_tasks.cli.call_id_argument import CallId, whole_id
from goondan_tasks.cli.session import Session, takes_session


@takes_session
def cancel(session: Session, call_id: CallId) -> None:
    """Cancel a call, queued or running: its result will be E_TOOL_CANCELLED.

    A queued call never runs; a running one ends as soon as its worker hears of it, well within a second.
    """
    with session.client() as client:
        found = whole_id(client, call_id)
        client.cancel(found)
        record = client.record(found)
    if session.output.as_json:
        return session.output.document(record.to_wire())
    ending = "cancelled" if record.status == "done" else "its worker is told to end it"
    return session.output.print(f"{record.call.tool_name} of {record.call.agent_name}: {ending}")
