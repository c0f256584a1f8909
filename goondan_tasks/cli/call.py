"""``goondan call``: submit a tool call, wait for it, print its result."""

from typing import Annotated, Any

import typer

from goondan_tasks.cli.exit_codes import FAILED
from goondan_tasks.cli.json_argument import parse_json
from goondan_tasks.cli.result_view import show_result
from goondan_tasks.cli.seconds_argument import Timeout
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.turn_options import Auth, Instance, Origin, require_some_text
from goondan_tasks.cli.waiting import wait_for_result
from goondan_tasks.client import Client
from goondan_tasks.errors import ToolNotInCatalogError
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.spelling import closest


@takes_session
def call(
    session: Session,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose queue the call goes to.")],
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
            return output.document({"id": pending.id}) if output.as_json else output.print(pending.id)
        result = wait_for_result(client, pending, agent=agent, timeout=timeout)
        meant = _meant_tool(client, result, agent) if not output.as_json else None
    show_result(result, output)
    if meant is not None:
        output.note(f"Did you mean {meant}?")
    if result.status == "error":
        raise typer.Exit(FAILED)
    return None


def _meant_tool(client: Client, result: ToolCallResult, agent: str) -> str | None:
    """Return the agent's tool that a misspelt name most likely stands for."""
    if result.error is None or result.error.code != ToolNotInCatalogError.code:
        return None
    meant = closest(result.tool_name, [tool["name"] for tool in client.catalog(agent)])
    # what workers have told of a catalog may be older than the revision that the call ran with
    return meant if meant != result.tool_name else None
