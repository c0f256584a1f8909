"""``goondan output``: the whole output of a call, through a worker if it is too large for a result."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from broker_config import serializer
from goondan_tasks.cli.call_id_argument import CallId, whole_id
from goondan_tasks.cli.seconds_argument import Timeout
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.waiting import wait_for_result
from goondan_tasks.client import CallOutput, Client, OutputPart, PendingCall
from goondan_tasks.messages import ToolCallResult


@takes_session
def call_output(
    session: Session,
    call_id: CallId,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Begin with this byte.")] = 0,
    timeout: Timeout = None,
) -> None:
    """Write a call's output to stdout: all of it, as JSON text, however large it is.

    With --json it stands in a document beside the call's id and its own size.
    """
    if offset and session.output.as_json:
        raise typer.BadParameter("a part is no JSON document; leave out --json or --offset.")
    with session.client() as client:
        output = client.output(whole_id(client, call_id))
        parts = _parts(client, output, offset, timeout)
        if not session.output.as_json:
            return session.output.stream(part.data for part in parts)
        data = b"".join(part.data for part in parts)
    found = {"id": output.result.meta.id, "size": len(data), "output": serializer.decode(data)}
    return session.output.document(found)


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
