"""``goondan instances``: which instances there are, and how one is deleted."""

from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.call_view import listed_time
from goondan_tasks.cli.confirmation import can_ask, confirm
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.removal_view import show_plan, show_removals
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import Client
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.names import OUTSIDE


class Action(StrEnum):
    """What is to be done."""

    LIST = "list"
    DELETE = "delete"


@takes_session
def instances(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="list or delete.")] = Action.LIST,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="The instance, for delete.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only of this agent.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it is deleted.")] = False,
) -> None:
    """List the instances, the one used last first, or delete one with its files.

    An instance that has calls or events which are queued, waiting or running is not deleted.
    """
    if (action is Action.DELETE) != (key is not None):
        raise typer.BadParameter("delete takes the KEY of an instance, list takes none.")
    with session.client() as client:
        if key is None:
            return _list(client, agent, session.output)
        if can_ask(session.output) and not yes:
            show_plan(client.delete_instance(key, agent, dry_run=True), session.output)
        confirm(f"Delete instance {key!r}", session.output, is_confirmed=yes)
        return show_removals(client.delete_instance(key, agent), session.output)


def _list(client: Client, agent: str | None, output: Output) -> None:
    found = client.instances(agent)
    if not found and agent is not None:
        client.catalog(agent)  # an agent that nobody knows is misspelt
    if output.as_json:
        return output.document([info.to_wire() for info in found])
    return output.table(
        ("last used", "created", "agent", "workspace", "spawned by", "works in", "instance"),
        [
            (
                listed_time(epoch_milliseconds(info.last_used_at), output),
                listed_time(epoch_milliseconds(info.created_at), output),
                info.target,
                info.workspace,
                _owner(info),
                info.cwd,
                info.instance_key,
            )
            for info in found
        ],
        none="There are no instances: the first call or event makes one.",
        unbroken="instance",
        spare={"created"},
    )


def _owner(info: InstanceInfo) -> str | None:
    return None if info.owner_agent == OUTSIDE else f"{info.owner_agent}@{info.owner_instance_key}"
