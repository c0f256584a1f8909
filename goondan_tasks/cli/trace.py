"""``goondan trace``: the tree of calls and handoffs that belong together."""

import itertools
from typing import Annotated

import typer

from goondan_tasks.cli.answer import Answer
from goondan_tasks.cli.call_id_argument import whole_id
from goondan_tasks.cli.output import Screen
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.trace_view import trace_text
from goondan_tasks.cli.watching import Watch, give
from goondan_tasks.client import Client
from goondan_tasks.errors import CallNotFoundError
from goondan_tasks.trace import Trace

CorrelationId = Annotated[
    str,
    typer.Argument(
        metavar="CORRELATION_ID",
        help="The correlationId; or the id of a call, its first 8 characters or more, or a traceId.",
    ),
]


@takes_session
def trace(
    session: Session,
    correlation_id: CorrelationId,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Draw at most so many calls.")] = 200,
    watch: Watch = None,
) -> None:
    """Draw the tree of calls and handoffs that come from one another: how each stands, waited and ran."""
    with session.client() as client:
        name, first = _found(client, correlation_id)
        traces = itertools.chain([first], iter(lambda: client.trace(name), None))
        return give(lambda: _answer(next(traces), limit), session.output, watch)


def _answer(found: Trace, limit: int) -> Answer:
    return Answer(found.to_wire(), trace_text(found, width=Screen().width, limit=limit))


def _found(client: Client, text: str) -> tuple[str, Trace]:
    """Find the trace of that name, else of the call whose id begins so; return by which name, too.

    Raises:
        CallNotFoundError: there is neither.
        typer.BadParameter: several calls begin so.
    """
    try:
        return text, client.trace(text)
    except CallNotFoundError:
        call_id = whole_id(client, text)
        if call_id == text:
            raise
        return call_id, client.trace(call_id)
