"""``goondan instances show``: an instance, and the conversations that its agents have had in it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from rich.text import Text

from goondan_tasks.cli.agents import instances_table
from goondan_tasks.cli.options import OfAgent, argument, flag
from goondan_tasks.cli.output import Output, local_time, on_one_line, printable
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.cli.turn_view import call_text
from goondan_tasks.client import Client
from goondan_tasks.errors import InstanceNotFoundError
from goondan_tasks.messages import Message, epoch_milliseconds
from goondan_tasks.model_messages import told_text

#: characters of a tool's result, or of the model's reasoning, that are shown
LONGEST_PART = 300


@takes_client
def show_instance(
    session: Session,
    client: Client,
    key: Annotated[str, argument("KEY", "The instance.")],
    messages: Annotated[
        bool, flag("Show what was said in it, by the agents that think.", "--messages")
    ] = False,
    agent: OfAgent = None,
) -> None:
    """Show an instance: its agents, or with --messages their conversations.

    Those are files in the instance's directory: this works where the state root is, say on the worker's
    machine. People get results of tools shortened, programs (--json) get all.
    """
    found = [info for info in client.instances(agent) if info.instance_key == key]
    if not found:
        whose = "" if agent is None else f" of agent {agent!r}"
        raise InstanceNotFoundError(f"No instance {key!r}{whose}.")
    output = session.output
    if not messages:
        return output.write(instances_table(found, output))
    said = {info.target: client.conversation(info.target, key) for info in found}
    if output.as_json:
        return output.document(
            [
                {"agent": name, "instanceKey": key, "messages": [message.to_wire() for message in all_of]}
                for name, all_of in said.items()
            ]
        )
    for name, all_of in said.items():
        if len(said) > 1 and all_of:
            output.print(Text(on_one_line(name), style="bold underline"))
        for message in all_of:
            _show(message, output)
    if not any(said.values()):
        output.note("There are no messages: agents that think have them, after their first Turn.")
    return None


def _show(message: Message, output: Output) -> None:
    role, at = str(message.data.get("role")), message.created_at
    with suppress(ValueError):  # an extension may have written it
        at = local_time(epoch_milliseconds(at))
    output.print(Text().append(on_one_line(role), style="bold").append(f"  {on_one_line(at)}", style="dim"))
    content = message.data.get("content")
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        output.print(_part_text(part if isinstance(part, Mapping) else {"type": "text", "text": part}))
    output.print("")


def _part_text(part: Mapping[str, Any]) -> Text:
    match part.get("type"):
        case "text":
            return Text(printable(str(part.get("text", ""))))
        case "reasoning":
            return Text(_shortened(str(part.get("text", ""))), style="dim italic")
        case "tool-call":
            return Text("calls ", style="cyan").append(
                call_text(str(part.get("toolName")), part.get("input"))
            )
        case "tool-result":
            text, failed = told_text(part.get("output"))
            mark = Text("error " if failed else "result ", style="red" if failed else "green")
            return mark.append(f"{on_one_line(str(part.get('toolName')))} {_shortened(text)}")
    return Text(f"({on_one_line(str(part.get('type')))})", style="dim")


def _shortened(text: str) -> str:
    short = text if len(text) <= LONGEST_PART else f"{text[:LONGEST_PART]}… ({len(text):,} characters)"
    return printable(short.rstrip())
