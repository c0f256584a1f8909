"""The commands about calls and requests: submit, wait, look, cancel, resolve."""

import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer
from rich.text import Text

from broker_config import serializer
from goondan_tasks.cli.options import (
    SEARCHED,
    Auth,
    CallId,
    Instance,
    OfAgent,
    OfTool,
    Origin,
    Timeout,
    Watch,
    parse_input,
    parse_json,
    parse_seconds,
    parse_some_seconds,
    require_some_text,
)
from goondan_tasks.cli.output import (
    FAILED,
    SHORTEST_ID,
    WAIT_TIMED_OUT,
    Answer,
    Output,
    describe_failure,
    duration_text,
    error_text,
    listing,
    local_time,
    named_message,
    on_one_line,
    pretty,
    tell,
)
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.waiting import give, progress_text, wait_for_result
from goondan_tasks.client import CallOutput, Client, OutputPart, PendingCall
from goondan_tasks.errors import HandoffError, HandoffTimeoutError, ToolNotInCatalogError, WaitTimeout
from goondan_tasks.handoff import accepted, handoff_error, not_answered, request_result
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCall, ToolCallError, ToolCallResult, wall_clock
from goondan_tasks.tool_api import REQUEST_TIMEOUT_MS
from goondan_tasks.wording import closest

_WHOLE_ID = 36
_STYLES = {"ok": "bold green", "error": "bold red", "pending": "bold yellow"}

#: which call it is, in every list of calls
CALL_COLUMNS: dict[str, Callable[[CallRecord], object]] = {
    "agent": lambda record: record.call.agent_name,
    "tool": lambda record: record.call.tool_name,
    "instance": lambda record: record.call.instance_key,
}


class Status(StrEnum):
    """How a call stands; ``ok`` and ``error`` are the outcomes of those that are done."""

    QUEUED = "queued"
    RUNNING = "running"
    PENDING = "pending"
    DONE = "done"
    DEAD = "dead"
    OK = "ok"
    ERROR = "error"


Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent that handles it.")]
Input = Annotated[
    Any,
    typer.Argument(parser=parse_input, metavar="INPUT", help="Plain text, JSON text, @FILE, or - for stdin."),
]
EventType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The event's type.")]


@takes_session
def call(
    session: Session,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent on whose queue the call goes.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's full name, such as bash__exec.")],
    args: Annotated[
        Any, typer.Argument(parser=parse_json, metavar="ARGS", help="JSON text, @FILE, or - for stdin.")
    ] = None,
    instance: Instance = None,
    turn: Annotated[
        str | None,
        typer.Option(metavar="T", callback=require_some_text, help="The Turn the call belongs to."),
    ] = None,
    tool_call_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="TOOL_CALL_ID",
            callback=require_some_text,
            help="Name the call: again with this id is the same call.",
        ),
    ] = None,
    auth: Auth = None,
    origin: Origin = None,
    timeout: Timeout = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the call's id and do not wait.")] = False,
) -> None:
    """Call an agent's tool and print the result.

    Ends with 0 if the tool answers ok (or pending), with 1 if it answers with an error.
    """
    if detach and timeout is not None:
        raise typer.BadParameter("--timeout limits the waiting, and --detach does not wait.")
    output = session.output
    with session.client() as client:
        pending = client.submit(
            agent,
            tool,
            args,
            instance_key=instance,
            turn_id=turn,
            tool_call_id=tool_call_id,
            auth=auth,
            origin=origin,
        )
        if detach:
            return output.give({"id": pending.id}, pending.id)
        result = wait_for_result(client, pending, agent=agent, timeout=timeout)
        meant = _meant_tool(client, result, agent) if not output.as_json else None
    show_result(result, output)
    if meant is not None:
        output.note(f"Did you mean {meant}?")
    return _end_with(result)


@takes_session
def request(
    session: Session,
    agent: Agent,
    input: Input,
    instance: Instance = None,
    event_type: EventType = None,
    auth: Auth = None,
    origin: Origin = None,
    timeout: Annotated[
        float,
        typer.Option(
            parser=parse_some_seconds,
            metavar="S",
            help="Wait S seconds at most; the agent is then told to stop.",
        ),
    ] = REQUEST_TIMEOUT_MS / 1000,
    detach: Annotated[bool, typer.Option("--async", help="Print the request's id and do not wait.")] = False,
) -> None:
    """Ask an agent and print its answer.

    Ends with 0 if the agent answers, with 1 if it fails, with 4 if it does not answer in time.
    """
    output = session.output
    with session.client() as client:
        asked, pending = client.ask(
            agent,
            input,
            timeout=timeout,
            instance_key=instance,
            event_type=event_type,
            auth=auth,
            origin=origin,
        )
        if detach:
            receipt = accepted(asked)
            return output.give(receipt.to_wire(), receipt.id)
        try:
            result = wait_for_result(client, pending, agent=agent, timeout=timeout)
        except WaitTimeout as error:
            client.call_off(pending)
            _tell_failure(asked, not_answered(asked, timeout), output)
            raise typer.Exit(WAIT_TIMED_OUT) from error
        return _show_response(asked, result, output)


@takes_session
def send(
    session: Session,
    agent: Agent,
    input: Input,
    instance: Instance = None,
    event_type: EventType = None,
    auth: Auth = None,
    origin: Origin = None,
) -> None:
    """Give an agent an event and print the id for `goondan trace` and `goondan result`.

    Ends with 0 as soon as the event is in the agent's mailbox.
    """
    with session.client() as client:
        sent = client.send(
            agent, input, instance_key=instance, event_type=event_type, auth=auth, origin=origin
        )
    session.output.give(sent.to_wire(), sent.id)


@takes_session
def result(session: Session, call_id: CallId, timeout: Timeout = None) -> None:
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
            return session.output.give(record.to_wire(), _standing(record))
    show_result(answer, session.output)
    return _end_with(answer)


@takes_session
def output(
    session: Session,
    call_id: CallId,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Begin with this byte.")] = 0,
    timeout: Timeout = None,
) -> None:
    """Write a call's output to stdout: all of it, as JSON text, however large it is.

    With --json it stands in a document beside the call's id and its own size.
    """
    if offset and session.output.as_json:
        raise typer.BadParameter("a part is not a JSON document; leave out --json or --offset.")
    with session.client() as client:
        found = client.output(whole_id(client, call_id))
        parts = _parts(client, found, offset, timeout)
        if not session.output.as_json:
            return session.output.stream(part.data for part in parts)
        data = b"".join(part.data for part in parts)
    document = {"id": found.result.meta.id, "size": len(data), "output": serializer.decode(data)}
    return session.output.document(document)


@takes_session
def cancel(session: Session, call_id: CallId) -> None:
    """Cancel a call, queued or running: its result will be E_TOOL_CANCELLED.

    A queued call never runs; a running one ends as soon as its worker hears of it, well within a second.
    """
    with session.client() as client:
        found = whole_id(client, call_id)
        client.cancel(found)
        record = client.record(found)
    ending = "cancelled" if record.status == "done" else "its worker is told to end it"
    session.output.give(record.to_wire(), f"{_name_of(record)}: {ending}")


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

    Ends with 2 if it was completed before, if it has expired, or if it is not pending.
    """
    if (value is None) == (error is None):
        raise typer.BadParameter("a call ends either with VALUE or with --error.")
    completion = None if value is None else parse_json(value)
    with session.client() as client:
        found = whole_id(client, call_id)
        if error is None:
            client.resolve(found, completion)
        else:
            client.fail(found, error)
        record = client.record(found)
    ending = "completed" if record.status == "done" else "will be completed as soon as its handler returns"
    session.output.give(record.to_wire(), f"{_name_of(record)}: {ending}")


@takes_session
def calls(
    session: Session,
    agent: OfAgent = None,
    limit: Annotated[int, typer.Option(min=1, max=SEARCHED, metavar="N", help="At most so many.")] = 20,
    tool: OfTool = None,
    instance: Annotated[str | None, typer.Option(metavar="K", help="Only those of this instance.")] = None,
    since: Annotated[
        float | None,
        typer.Option(parser=parse_seconds, metavar="S", help="Only those of the last S seconds, or 10m, 2h."),
    ] = None,
    status: Annotated[
        Status | None, typer.Option(help=f"Only calls with this status, of the {SEARCHED} most recent.")
    ] = None,
    watch: Watch = None,
) -> None:
    """List the most recent calls, the newest first.

    Filters look through the 1000 most recent ones. On a narrow terminal year and worker are left out.
    """
    is_narrowed = any(one is not None for one in (status, tool, instance, since))

    def is_wanted(record: CallRecord, earliest: float) -> bool:
        return (
            (status is None or status in {record.status, record.outcome})
            and (tool is None or fnmatchcase(record.call.tool_name, tool))
            and (instance is None or instance == record.call.instance_key)
            and record.queued_at >= earliest
        )

    columns: dict[str, Callable[[CallRecord], object]] = {
        "queued": lambda record: session.output.time(record.queued_at),
        **CALL_COLUMNS,
        "status": _outcome_of,
        "took": _duration_of,
        "worker": lambda record: record.worker,
        "id": lambda record: session.output.call_id(record.id),
    }

    def look() -> Answer:
        earliest = 0 if since is None else wall_clock() - since * 1000
        if agent is not None:
            client.catalog(agent)
        found = client.calls(agent, SEARCHED if is_narrowed else limit)
        records = [record for record in found if is_wanted(record, earliest)][:limit]
        none = "There are no such calls." if agent or is_narrowed else "There are no calls."
        return listing(records, columns, wire=CallRecord.to_wire, none=none, unbroken="id", spare={"worker"})

    with session.client() as client:
        return give(look, session.output, watch)


def whole_id(client: Client, text: str) -> str:
    """Return the id that begins with ``text``; an unknown one is returned as it is.

    Raises:
        typer.BadParameter: several recent calls begin so.
    """
    if not SHORTEST_ID <= len(text) < _WHOLE_ID:
        return text
    found = [record.id for record in client.calls(None, SEARCHED) if record.id.startswith(text)]
    if text in found or not found:
        return text
    if len(found) > 1:
        raise typer.BadParameter(f"several calls begin with {text!r}: {', '.join(found[:5])}.")
    return found[0]


def show_result(result: ToolCallResult, output: Output) -> None:
    """Print a result: for programs the record as it is on the wire."""
    if output.as_json:
        return output.document(result.to_wire())
    output.note(_headline(result, result.tool_name))
    if result.error is not None:
        error = result.error
        return output.print(error_text(error.code, named_message(error), error.suggestion, error.help_url))
    output.print(pretty(result.output))
    if result.meta.output_file is not None:
        output.note(f"The output is too large to stand here. See it with: goondan output {result.meta.id}")
    return None


def _headline(result: ToolCallResult, name: str) -> Text:
    """Say in one line how a call ended, what it was, which worker ran it and for how long."""
    meta = result.meta
    duration = None if meta.duration_ms is None else duration_text(meta.duration_ms / 1000)
    handle = None if result.handle is None else f"handle {result.handle}"
    facts = [name, duration, meta.worker, handle, f"id {meta.id}"]
    line = Text().append(result.status, style=_STYLES[result.status])
    return line.append("  " + on_one_line(" · ".join(fact for fact in facts if fact)))


def _end_with(result: ToolCallResult) -> None:
    if result.status == "error":
        raise typer.Exit(FAILED)


def _meant_tool(client: Client, result: ToolCallResult, agent: str) -> str | None:
    """Return the agent's tool that a misspelt name most likely stands for."""
    if result.error is None or result.error.code != ToolNotInCatalogError.code:
        return None
    meant = closest(result.tool_name, [tool["name"] for tool in client.catalog(agent)])
    # the announced catalog may be older than the revision that the call ran with
    return meant if meant != result.tool_name else None


def _show_response(asked: ToolCall, result: ToolCallResult, output: Output) -> None:
    if result.error is not None:
        failed = handoff_error(result.error if output.as_json else _for_people(result.error))
        _tell_failure(asked, failed, output)
        raise typer.Exit(WAIT_TIMED_OUT if isinstance(failed, HandoffTimeoutError) else FAILED)
    if output.as_json:
        return output.document(request_result(asked, result).to_wire())
    output.note(_headline(result, asked.agent_name))
    return output.print(pretty(result.output))


def _for_people(error: ToolCallError) -> ToolCallError:
    return error.model_copy(update={"message": named_message(error)})


def _tell_failure(asked: ToolCall, failed: HandoffError, output: Output) -> None:
    """Tell why there is no answer, and by which id the request is found."""
    failure = {**describe_failure(failed), "correlationId": asked.correlation_id}
    if "suggestion" in failure:  # written for agents' code
        failure["suggestion"] = failure["suggestion"].replace("`async: true`", "--async")
    tell(failure, output, label=failed.code)
    if not output.as_json:
        output.note(f"See it with: goondan trace {asked.correlation_id}")


def _name_of(record: CallRecord) -> str:
    return f"{record.call.tool_name} of {record.call.agent_name}"


def _standing(record: CallRecord) -> str:
    worker = f" on {record.worker}, attempt {record.attempt}" if record.worker else ""
    progress = "" if record.progress is None else f", {progress_text(record.progress)}"
    queued = local_time(record.queued_at)
    return f"{_outcome_of(record)}{worker}: {_name_of(record)}, queued {queued}{progress}"


def _outcome_of(record: CallRecord) -> str:
    """Return ``ok`` or ``error`` of a call that is done, else its status."""
    return record.outcome if record.status == "done" and record.outcome else record.status


def _duration_of(record: CallRecord) -> str | None:
    """Return how long the call's last run took, from its claim on."""
    if record.claimed_at is None or record.finished_at is None:
        return None
    return duration_text((record.finished_at - record.claimed_at) / 1000)


def _parts(client: Client, output: CallOutput, offset: int, timeout: float | None) -> Iterator[OutputPart]:
    began = time.monotonic()

    def wait(asked: PendingCall) -> ToolCallResult:
        rest = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return wait_for_result(client, asked, agent=output.result.meta.agent_name, timeout=rest)

    for part in output.parts(offset, wait=wait):
        yield part
        _show_progress(part)


def _show_progress(part: OutputPart) -> None:
    """Renew one line, where a person sees it and the output goes elsewhere."""
    if part.offset == 0 and part.next_offset is None:
        return
    if sys.stderr.isatty() and not sys.stdout.isatty():
        end = "\n" if part.next_offset is None else "\r"
        sys.stderr.write(f"{part.offset + len(part.data):,} of {part.size:,} bytes{end}")
        sys.stderr.flush()
