"""``goondan show``: the story of one call."""

from collections.abc import Iterator

from rich.text import Text

from goondan_tasks.cli.calls import styled_state, whole_id
from goondan_tasks.cli.options import CallId
from goondan_tasks.cli.output import (
    STATE_STYLES,
    Answer,
    Columns,
    Output,
    error_text,
    listing,
    local_time,
    make_table,
    named_message,
)
from goondan_tasks.cli.session import Session, takes_client
from goondan_tasks.cli.waiting import progress_text
from goondan_tasks.client import Client
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.story import Attempt, CallStory, Excerpt, RelatedCall
from goondan_tasks.wording import duration_text

#: how many children are listed; ``goondan trace`` draws all
MOST_CHILDREN = 20

Fact = tuple[str, object]


@takes_client
def show(session: Session, client: Client, call_id: CallId) -> None:
    """Tell the story of one call: what was asked, how it stands or has ended, its attempts, what it caused.

    Ends with 0 whatever the call's state is; `goondan result ID` ends with 1 for an error.
    """
    story = client.describe(whole_id(client, call_id))
    output = session.output
    if output.as_json:
        return output.document(story.to_wire())
    output.print(make_table(("call", story.id), [*_facts(story)]))
    if story.attempts:
        output.print("")
        output.write(_attempts(story))
    if (error := story.error) is not None:
        output.print("")
        output.print(error_text(error.code, named_message(error), error.suggestion, error.help_url))
        where = f"the log of {story.worker}" if story.worker else "the worker's log"
        output.print(f"Traceback: not kept with the call; if a handler raised it, {where} has it.")
    if story.children:
        output.print("")
        _show_children(story, output)
    return None


def _facts(story: CallStory) -> Iterator[Fact]:
    yield "state", Text(story.summary, style=STATE_STYLES.get(story.state, ""))
    yield "agent", story.agent
    yield "instance", story.instance
    yield "tool", story.tool if story.event_type is None else f"{story.tool} ({story.event_type})"
    yield "arguments", _excerpt_text(story.args)
    yield "queued", _time(story.queued_at)
    yield "waited", duration_text(story.waiting_seconds)
    if story.running_seconds is not None and story.lost_at is None:
        yield "ran", duration_text(story.running_seconds)
    yield from _waiting_facts(story)
    yield "runs left", _runs_left(story)
    if story.retries:
        yield "failed and tried again", story.retries
    if story.deadline is not None:
        yield "deadline", _time(story.deadline)
    if story.timeout_seconds is not None:
        yield "time limit of a run", duration_text(story.timeout_seconds)
    if story.output is not None:
        yield "output", _excerpt_text(story.output)
    if story.output_file is not None:
        yield "whole output", f"goondan output {story.id}"
    usage = ", ".join(f"{count:,} {kind}" for kind, count in (story.usage or {}).items())
    for name, value in (
        ("tokens", usage or None),
        ("handle", story.handle),
        ("approved by", story.approved_by),
        ("ended in its worker's place by", story.settled_by),
        ("replays", story.replay_of),
        ("replayed as", story.replayed_by),
        ("caused by", None if story.parent is None else _related_text(story.parent)),
        ("turn", story.turn_id),
        ("correlation", story.correlation_id),
        ("trace", story.trace_id),
    ):
        if value is not None:
            yield name, value
    if story.parent_id is not None and story.parent is None:
        yield "caused by", f"{story.parent_id}, which is unknown or has expired"


def _waiting_facts(story: CallStory) -> Iterator[Fact]:
    """Yield what an open call waits for, or how far it has come."""
    if story.limits:
        yield "limits", ", ".join(story.limits)
    if story.ahead is not None:
        yield "before it there", "no call" if not story.ahead else f"{story.ahead} calls"
    if story.progress is not None:
        yield "progress", progress_text(story.progress)
    if story.expires_at is not None:
        yield "expires", _time(story.expires_at)
    if story.awaits == "approval":
        yield "to let it run", f"goondan approvals approve {story.id}"
    elif story.awaits == "completion":
        yield "to complete it", f"goondan resolve {story.id} VALUE"


def _runs_left(story: CallStory) -> str:
    if story.finished_at is not None:
        return "not kept of a call that has ended"
    if story.runs_left is None:
        return "not known before it has started"
    if not story.runs_left:
        return "0: it is not run again if its worker dies"
    return f"{story.runs_left}, if its worker dies"


def _attempts(story: CallStory) -> Answer:
    columns: Columns[Attempt] = {
        "attempt": lambda one: one.number,
        "worker": lambda one: one.worker or "not kept",
        "started": lambda one: _time(one.started_at) or "not kept",
        "ended": lambda one: _time(one.ended_at),
        "with": lambda one: one.ended,
    }
    return listing(story.attempts, columns)


def _show_children(story: CallStory, output: Output) -> None:
    columns: Columns[RelatedCall] = {
        "caused": lambda one: f"{one.agent}@{one.instance} {one.tool}",
        "state": lambda one: styled_state(one.state),
        "id": lambda one: output.call_id(one.id),
    }
    output.write(listing(story.children[:MOST_CHILDREN], columns, unbroken="id", is_cut=True))
    if (more := len(story.children) - MOST_CHILDREN) > 0:
        output.note(f"… and {more:,} more: goondan trace {story.id}")


def _related_text(call: RelatedCall) -> str:
    return f"{call.agent}@{call.instance} {call.tool}, {call.state}, {call.id}"


def _excerpt_text(excerpt: Excerpt) -> str:
    return f"{excerpt.text}… ({excerpt.size:,} bytes)" if excerpt.is_cut else excerpt.text


def _time(text: str | None) -> str | None:
    return None if text is None else local_time(epoch_milliseconds(text))
