"""``goondan result``: the result of a call that was submitted before."""

import typer

from goondan_tasks.cli.call_id_argument import CallId, whole_id
from goondan_tasks.cli.call_view import local_time, outcome_of
from goondan_tasks.cli.exit_codes import FAILED
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.progress_view import progress_text
from goondan_tasks.cli.result_view import show_result
from goondan_tasks.cli.seconds_argument import Timeout
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.waiting import wait_for_result
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.ledger.record import CallRecord


@takes_session
def result(
    session: Session,
    call_id: CallId,
    timeout: Timeout = None,
) -> None:
    """Print a call's result; if there is none yet, how the call stands.

    Does not wait unless --timeout is given. Ends with 1 if the tool answered with an error.
    """
    with session.client() as client:
        pending = client.pending(whole_id(client, call_id))
        record = client.record(pending.id)
        try:
            if timeout is None:
                answer = pending.result(0)
            else:
                answer = wait_for_result(client, pending, agent=record.call.agent_name, timeout=timeout)
        except WaitTimeout:
            if timeout is not None:
                raise
            return _show_standing(record, session.output)
    show_result(answer, session.output)
    if answer.status == "error":
        raise typer.Exit(FAILED)
    return None


def _show_standing(record: CallRecord, output: Output) -> None:
    if output.as_json:
        return output.document(record.to_wire())
    worker = f" on {record.worker}, attempt {record.attempt}" if record.worker else ""
    call = f"{record.call.tool_name} of {record.call.agent_name}"
    told = "" if record.progress is None else f", {progress_text(record.progress)}"
    return output.print(f"{outcome_of(record)}{worker}: {call}, queued {local_time(record.queued_at)}{told}")
