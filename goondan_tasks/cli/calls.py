"""Commands for calls and requests: submit, wait, resolve."""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from broker_config import serializer
from goondan_tasks.authoring.handoff import EventFields, accepted, handoff_error, not_answered, request_result
from goondan_tasks.authoring.tool_api import REQUEST_TIMEOUT_MS
from goondan_tasks.cli.live_output import show_turn, wait_for_result
from goondan_tasks.cli.options import (
    At,
    Auth,
    CallId,
    CallIds,
    Delay,
    Instance,
    Keep,
    Origin,
    OutputSchema,
    Timeout,
    argument,
    complete_agent,
    complete_tool,
    flag,
    moment_fields,
    name_option,
    option,
    parse_input,
    parse_json,
    parse_positive_seconds,
    seconds_option,
)
from goondan_tasks.cli.output import (
    FAILED,
    SHORTEST_ID,
    STATE_STYLES,
    WAIT_TIMED_OUT,
    Columns,
    Output,
    describe_failure,
    error_text,
    local_time,
    named_message,
    pretty,
    show_progress,
    write_failure,
)
from goondan_tasks.cli.session import Session, grouping, takes_client
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.errors import HandoffError, HandoffTimeoutError, WaitTimeout
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, wall_clock
from goondan_tasks.contract.wording import duration_text, on_one_line
from goondan_tasks.ledger.record import CallRecord

_WHOLE_ID = 36
#: the columns that identify a call in every list
CALL_COLUMNS: Columns[CallRecord] = {
    "agent": lambda record: record.call.agent_name,
    "tool": lambda record: record.call.tool_name,
    "instance": lambda record: record.call.instance_key,
}


Agent = Annotated[str, argument("AGENT", "The agent to ask.", autocompletion=complete_agent)]
Input = Annotated[Any, argument("INPUT", "Plain text, JSON text, @FILE, or - for stdin.", parser=parse_input)]
EventType = Annotated[str | None, option("TYPE", "The event's type.", "--type")]
TurnId = Annotated[str | None, name_option("T", "The Turn the call belongs to.", "--turn")]
ToolCallId = Annotated[
    str | None, name_option("TOOL_CALL_ID", "The call's id: the same id is the same call.", "--id")
]


def _takes_fields(**own: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of what is submitted to a command, which gets them as ``fields``."""

    def fields(
        instance: str | None, delay: float | None, at: datetime | None, **given: Any
    ) -> dict[str, Any]:
        return {"instance_key": instance, **given, **moment_fields(delay, at)}

    of_all = {"auth": Auth, "origin": Origin, "delay": Delay, "at": At}
    return grouping("fields", {"instance": Instance, **own, **of_all}, fields)


@takes_client
@_takes_fields(turn_id=TurnId, tool_call_id=ToolCallId)
def call(
    session: Session,
    client: Client,
    agent: Agent,
    tool: Annotated[
        str, argument("TOOL", "The tool's full name, such as bash__exec.", autocompletion=complete_tool)
    ],
    args: Annotated[Any, argument("ARGS", "JSON text, @FILE, or - for stdin.", parser=parse_json)] = None,
    *,
    fields: CallFields,
    timeout: Timeout = None,
    detach: Annotated[bool, flag("Print the call's id and do not wait.", "--detach")] = False,
) -> None:
    """Call an agent's tool and print the result.

    The exit code is 0 if the result is ok or pending, 1 if it is an error.
    """
    if detach and timeout is not None:
        raise typer.BadParameter("--timeout does not go with --detach, which does not wait.")
    pending = client.submit(agent, tool, args, **fields)
    if detach:
        return session.output.give({"id": pending.id}, pending.id)
    result = wait_for_result(client, pending, agent=agent, timeout=timeout)
    show_result(result, session.output)
    return _end_with(result)


@takes_client
@_takes_fields(event_type=EventType, output_schema=OutputSchema, keep=Keep)
def request(
    session: Session,
    client: Client,
    agent: Agent,
    input: Input,
    *,
    fields: EventFields,
    timeout: Annotated[
        float,
        seconds_option("Wait at most S seconds, then tell the agent to stop.", parser=parse_positive_seconds),
    ] = REQUEST_TIMEOUT_MS / 1000,
    detach: Annotated[bool, flag("Print the request's id and do not wait.", "--async")] = False,
) -> None:
    """Ask an agent and print its answer.

    The exit code is 0 if the agent answers, 1 if it fails, 4 if it does not answer in time.
    """
    output, is_shown = session.output, False
    if detach:
        receipt = accepted(client.ask(agent, input, timeout=timeout, **fields)[0])
        return output.give(receipt.to_wire(), receipt.id)
    try:
        if sys.stderr.isatty() and not output.as_json:
            asked, follower = client.following(agent, input, timeout=timeout, cancel_on_close=False, **fields)
            result, is_shown = show_turn(client, follower, agent)
        else:
            asked, pending = client.ask(agent, input, timeout=timeout, **fields)
            patience = client.patience(asked, timeout)
            result = wait_for_result(client, pending, agent=agent, timeout=patience)
    except (WaitTimeout, HandoffTimeoutError) as error:
        if isinstance(error, WaitTimeout):
            client.call_off(pending)
        _report_unanswered(asked, not_answered(asked, timeout), output)
        raise typer.Exit(WAIT_TIMED_OUT) from error
    if (reason := result.error) is not None:
        named = reason if output.as_json else reason.model_copy(update={"message": named_message(reason)})
        failed = handoff_error(named)
        _report_unanswered(asked, failed, output)
        raise typer.Exit(WAIT_TIMED_OUT if isinstance(failed, HandoffTimeoutError) else FAILED)
    if output.as_json:
        return output.document(request_result(result).to_wire())
    output.note(_headline(result, asked.agent_name))
    return None if is_shown else output.print(pretty(result.output))


@takes_client
@_takes_fields(event_type=EventType, keep=Keep)
def send(session: Session, client: Client, agent: Agent, input: Input, *, fields: EventFields) -> None:
    """Send an agent an event and print its id, for `goondan trace` and `goondan result`.

    The exit code is 0 as soon as the event is in the agent's mailbox, or scheduled.
    """
    sent = client.send(agent, input, **fields)
    session.output.give(sent.to_wire(), sent.id)


@takes_client
def result(session: Session, client: Client, call_id: CallId, timeout: Timeout = None) -> None:
    """Print a call's result, or its current state if there is no result yet.

    It waits only with --timeout. The exit code is 1 if the result is an error.
    """
    pending = client.pending(whole_id(client, call_id))
    record = client.record(pending.id)
    if timeout is not None:
        answer = wait_for_result(client, pending, agent=record.call.agent_name, timeout=timeout)
    else:
        try:
            answer = pending.result(0)
        except WaitTimeout:
            progress = "" if record.progress is None else f", {on_one_line(record.progress.text)}"
            facts = f"{call_name(record)}, queued {local_time(record.queued_at)}{progress}"
            return session.output.give(
                record.to_wire(), on_one_line(f"{record.state_text(wall_clock())}: {facts}")
            )
    show_result(answer, session.output)
    return _end_with(answer)


@takes_client
def output(
    session: Session,
    client: Client,
    call_id: CallId,
    offset: Annotated[int, option("N", "Start at byte N.", min=0)] = 0,
    timeout: Timeout = None,
) -> None:
    """Write a call's full output to stdout as JSON text, however large it is.

    With --json the output is part of a document, beside the call's id and the size of the output.
    """
    if offset and session.output.as_json:
        raise typer.BadParameter("--offset does not go with --json: part of an output is no JSON document.")
    found = client.output(whole_id(client, call_id))
    began = time.monotonic()

    def wait(asked: PendingCall) -> ToolCallResult:
        rest = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return wait_for_result(client, asked, agent=found.result.meta.agent_name, timeout=rest)

    def parts() -> Iterator[bytes]:
        for part in found.parts(offset, wait=wait):
            yield part.data
            is_last = part.next_offset is None
            if not sys.stdout.isatty() and (part.offset or not is_last):
                show_progress(part.offset + len(part.data), part.size, " bytes", is_last=is_last)

    if not session.output.as_json:
        return session.output.stream(parts())
    data = b"".join(parts())
    document = {"id": found.result.meta.id, "size": len(data), "output": serializer.decode(data)}
    return session.output.document(document)


@takes_client
def run_now(session: Session, client: Client, ids: CallIds) -> None:
    """Run scheduled calls, and deliver scheduled events, at once.

    One whose time has come stays as it is.
    """
    found = [whole_id(client, call_id) for call_id in ids]
    for call_id in found:
        client.run_now(call_id)
    records = [client.record(call_id) for call_id in found]
    wire = [record.to_wire() for record in records]
    text = "\n".join(f"{call_name(record)}: {record.state}" for record in records)
    session.output.give(wire[0] if len(wire) == 1 else wire, text)


@takes_client
def resolve(
    session: Session,
    client: Client,
    call_id: CallId,
    value: Annotated[str | None, argument("VALUE", "JSON text, @FILE, or - for stdin.")] = None,
    error: Annotated[str | None, option("TEXT", "End the call with an error that has this message.")] = None,
) -> None:
    """Complete a pending call with VALUE as its output, or with an error.

    The exit code is 2 if the call is not pending: it was completed before, or it has expired.
    """
    if (value is None) == (error is None):
        raise typer.BadParameter("give either VALUE or --error.")
    completion = None if value is None else parse_json(value)
    found = whole_id(client, call_id)
    if error is None:
        client.resolve(found, completion)
    else:
        client.fail(found, error)
    record = client.record(found)
    ending = "completed" if record.status == "done" else "will be completed as soon as its handler returns"
    session.output.give(record.to_wire(), f"{call_name(record)}: {ending}")


def whole_id(client: Client, text: str) -> str:
    """Return the id of the call that begins with ``text``; ``text`` itself if there is none.

    Raises:
        typer.BadParameter: several calls begin with it.
    """
    if not SHORTEST_ID <= len(text) < _WHOLE_ID:
        return text
    found = client.ids_beginning_with(text)
    if text in found or not found:
        return text
    if len(found) > 1:
        raise typer.BadParameter(f"several calls begin with {text!r}: {on_one_line(', '.join(found[:5]))}.")
    return found[0]


def show_result(result: ToolCallResult, output: Output) -> None:
    """Print a result; programs get it as it is on the wire."""
    if output.as_json:
        return output.document(result.to_wire())
    output.note(_headline(result, result.tool_name))
    if (error := result.error) is not None:
        return output.print(error_text(error.code, named_message(error), error.suggestion, error.help_url))
    output.print(pretty(result.output))
    if result.meta.output_file is not None:
        output.note(f"The output is too large to print here. See it with: goondan output {result.meta.id}")
    if result.meta.awaits == "approval":
        output.note(f"Let it run with: goondan approvals approve {result.meta.id}")
        output.note(f"End it with:     goondan approvals deny {result.meta.id}")
    elif result.meta.awaits == "completion":
        output.note(f"Complete it with: goondan resolve {result.meta.id} VALUE")
    return None


def _headline(result: ToolCallResult, name: str) -> Text:
    """Write a call's status, name, duration, worker and id in one line."""
    meta = result.meta
    duration = None if meta.duration_ms is None else duration_text(meta.duration_ms / 1000)
    handle = None if result.handle is None else f"handle {result.handle}"
    facts = [name, duration, meta.worker, handle, f"id {meta.id}"]
    line = Text().append(result.status, style=f"bold {STATE_STYLES[result.status]}")
    return line.append("  " + on_one_line(" · ".join(fact for fact in facts if fact)))


def _end_with(result: ToolCallResult) -> None:
    if result.status == "error":
        raise typer.Exit(FAILED)


def _report_unanswered(asked: ToolCall, failed: HandoffError, output: Output) -> None:
    """Report why there is no answer, and the id of the request."""
    failure = {**describe_failure(failed), "correlationId": asked.correlation_id}
    if "suggestion" in failure:  # it is written for the code of agents
        failure["suggestion"] = failure["suggestion"].replace("`async: true`", "--async")
    write_failure(failure, output, label=failed.code)
    if not output.as_json:
        output.note(f"See it with: goondan trace {asked.correlation_id}")


def call_name(record: CallRecord) -> str:
    """Name a call by its tool and agent."""
    return on_one_line(f"{record.call.tool_name} of {record.call.agent_name}")


def styled_state(state: str) -> Text:
    return Text(state, style=STATE_STYLES.get(state, ""))
