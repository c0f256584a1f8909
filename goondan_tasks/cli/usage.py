"""What was used, and how work goes between agents: ``usage`` and ``handoffs``."""

from collections.abc import Callable
from typing import Annotated

from goondan_tasks.cli.live_output import write_or_watch
from goondan_tasks.cli.options import OfAgent, Watch, option
from goondan_tasks.cli.output import Answer, Columns, listing
from goondan_tasks.cli.session import Session, require_agent, takes_client
from goondan_tasks.client import Client
from goondan_tasks.fleet.usage import GROUPS, MOST_DAYS, MOST_HOURS, HandoffCount, Usage, groups_of

_COUNTS: Columns[Usage] = {
    "calls": lambda row: f"{row.calls:,}",
    "requests": lambda row: f"{row.requests:,}",
    "input": lambda row: f"{row.input:,}",
    "cached": lambda row: f"{row.cached:,}",
    "output": lambda row: f"{row.output:,}",
    "reasoning": lambda row: f"{row.reasoning:,}",
}
_EDGES: Columns[HandoffCount] = {
    "from": lambda edge: edge.from_agent,
    "to": lambda edge: edge.to,
    "count": lambda edge: f"{edge.count:,}",
    "failed": lambda edge: f"{edge.errors:,}",
    "share": lambda edge: f"{edge.errors / edge.count:.1%}",
}


@takes_client
def usage(
    session: Session,
    client: Client,
    days: Annotated[int, option("N", "The last N days, today included.", min=1, max=MOST_DAYS)] = 30,
    by: Annotated[
        str, option("GROUPS", f"What groups it: some of {', '.join(GROUPS)}, separated by commas.")
    ] = "day",
    agent: OfAgent = None,
) -> None:
    """Show what was used by day, agent, model or user: calls, requests to models, and their tokens.

    Days are those of UTC. Input includes what was cached, output includes reasoning. The user is the
    auth.subjects.user of a call. Workers write what they have counted every few seconds, and usage is kept
    for GOONDAN_USAGE_DAYS.
    """
    groups = groups_of(by)
    found = client.usage(days, ",".join({*groups, "agent"} if agent else groups))
    rows = [row for row in found if agent in {None, row.agent}]
    if not rows:
        require_agent(client, agent)
    names: Columns[Usage] = {group: _field(group) for group in groups}
    none = f"Nothing was used in the last {days} days."
    session.output.write(listing(rows, {**names, **_COUNTS}, wire=Usage.to_wire, none=none))


def _field(name: str) -> Callable[[Usage], object]:
    return lambda row: getattr(row, name) or None


@takes_client
def handoffs(
    session: Session,
    client: Client,
    hours: Annotated[
        int, option("N", "The N full hours before the one that is under way.", min=0, max=MOST_HOURS)
    ] = 1,
    watch: Watch = None,
) -> None:
    """Show how often agents have passed work to each other, and how often that failed.

    Requests and events count when they have been handled; answers do not. What comes from outside has the
    sender "client".
    """

    def look() -> Answer:
        found = client.handoffs(hours)
        none = f"No agent has been handed work since {found.since}."
        answer = listing(found.edges, _EDGES, none=none)
        return Answer(found.to_wire(), answer.content, answer.notes)

    return write_or_watch(look, session.output, watch)
