"""``goondan request``: ask an agent, wait, print its answer."""

from typing import Annotated, Any

import typer

from goondan_tasks.agents.answers import accepted, handoff_error, not_answered, request_result
from goondan_tasks.cli.error_text import named_message
from goondan_tasks.cli.exit_codes import FAILED, WAIT_TIMED_OUT
from goondan_tasks.cli.failures import describe_failure, tell
from goondan_tasks.cli.json_argument import parse_input
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.result_view import headline, pretty
from goondan_tasks.cli.seconds_argument import parse_some_seconds
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.turn_options import Auth, Instance, Origin
from goondan_tasks.cli.waiting import wait_for_result
from goondan_tasks.errors import HandoffError, HandoffTimeoutError, WaitTimeout
from goondan_tasks.messages import ToolCall, ToolCallError, ToolCallResult
from goondan_tasks.runtime_api import REQUEST_TIMEOUT_MS

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Who is to deal with it.")]
Input = Annotated[
    Any,
    typer.Argument(parser=parse_input, metavar="INPUT", help="Plain text, JSON text, @FILE, or - for stdin."),
]
EventType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The event's type.")]


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
        call, pending = client.ask(
            agent,
            input,
            timeout=timeout,
            instance_key=instance,
            event_type=event_type,
            auth=auth,
            origin=origin,
        )
        if detach:
            asked = accepted(call)
            return output.document(asked.to_wire()) if output.as_json else output.print(asked.id)
        try:
            result = wait_for_result(client, pending, agent=agent, timeout=timeout)
        except WaitTimeout as error:
            client.call_off(pending)
            _tell_failure(call, not_answered(call, timeout), output)
            raise typer.Exit(WAIT_TIMED_OUT) from error
        return _show(call, result, output)


def _show(call: ToolCall, result: ToolCallResult, output: Output) -> None:
    if result.error is not None:
        failed = handoff_error(result.error if output.as_json else _for_people(result.error))
        _tell_failure(call, failed, output)
        raise typer.Exit(WAIT_TIMED_OUT if isinstance(failed, HandoffTimeoutError) else FAILED)
    if output.as_json:
        return output.document(request_result(call, result).to_wire())
    output.note(headline(result, name=call.agent_name))
    return output.print(pretty(result.output))


def _for_people(error: ToolCallError) -> ToolCallError:
    return error.model_copy(update={"message": named_message(error)})


def _tell_failure(call: ToolCall, failed: HandoffError, output: Output) -> None:
    """Tell why there is no answer, and by which id the request is found."""
    failure = {**describe_failure(failed), "correlationId": call.correlation_id}
    if "suggestion" in failure:  # written for agents' code
        failure["suggestion"] = failure["suggestion"].replace("`async: true`", "--async")
    tell(failure, output, label=failed.code)
    if not output.as_json:
        output.note(f"See it with: goondan trace {call.correlation_id}")
