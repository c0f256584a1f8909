"""``goondan audit``: who did what, when, and by which door."""

from typing import Annotated

from goondan_tasks.cli.options import option, seconds_option
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.client import AuditEntry, Client
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.wording import on_one_line
from goondan_tasks.fleet.audit import MOST_ENTRIES


@takes_client
def audit(
    session: Session,
    client: Client,
    by: Annotated[str | None, option("NAME", "Only acts of this person or token.")] = None,
    target: Annotated[
        str | None, option("NAME", "Only acts on the object with this id or name, or on this agent's.")
    ] = None,
    act: Annotated[str | None, option("ACT", "Only this act, such as cancel or token.add.")] = None,
    door: Annotated[str | None, option("NAME", "Only acts by this door, such as cli or console.")] = None,
    since: Annotated[float | None, seconds_option("Only acts of the last S seconds, or 10m, 2h.")] = None,
    limit: Annotated[int, option("N", "Show at most N acts.", min=1, max=MOST_ENTRIES)] = 50,
    before: Annotated[str | None, option("ID", "Go on before the entry with this id.")] = None,
) -> None:
    """List who did what, from the console, the command line and the API, the latest first.

    The latest 10,000 acts are kept; submitting calls and events is not an act.
    """
    wanted = {"by": by, "target": target, "act": act, "door": door, "newer_than": since, "before": before}
    found = client.audit(limit, **wanted)  # type: ignore[arg-type]
    output = session.output
    columns: Columns[AuditEntry] = {
        "at": lambda one: output.time(epoch_milliseconds(one.at)),
        "by": person_of,
        "door": lambda one: one.door,
        "act": lambda one: one.act,
        "object": object_of,
        "outcome": lambda one: None if one.outcome == "ok" else one.outcome,
        "id": lambda one: one.id,
    }
    is_part = any(one is not None for one in wanted.values())
    none = "No such act was recorded." if is_part else "No act was recorded yet."
    wire = AuditEntry.to_wire
    output.write(listing(found, columns, wire=wire, none=none, unbroken="object", spare={"id", "outcome"}))


def person_of(entry: AuditEntry) -> str | None:
    """Return who did it, and in whose name if that is another's."""
    name = entry.by or None
    return name if entry.in_name_of is None else f"{name} for {entry.in_name_of}"


def object_of(entry: AuditEntry) -> str:
    """Return what it was done to: ``tool bash__exec of coder``, ``12 calls of coder``."""
    many = [] if entry.count is None else [f"{entry.count:,}"]
    words = [*many, entry.kind, entry.target]
    if entry.agent is not None and entry.agent != entry.target:
        words += ["of", entry.agent]
    return on_one_line(" ".join(word for word in words if word))
