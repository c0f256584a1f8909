"""Commands for schedules: list, add, pause, resume, run and remove them."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from goondan_tasks.cli.options import (
    argument,
    complete_agent,
    name_option,
    option,
    parse_input,
    parse_object,
)
from goondan_tasks.cli.output import Columns, Output, listing
from goondan_tasks.cli.session import Session, login, takes_client
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.schedules import CATCH_UP_LIMIT, MOST_CAUGHT_UP, Schedule
from goondan_tasks.contract.timing import LONGEST_JITTER
from goondan_tasks.contract.wording import on_one_line
from goondan_tasks.ledger.schedules import ScheduleState


class CatchUpChoice(StrEnum):
    """What is made up for after an outage."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapChoice(StrEnum):
    """What becomes of a slot while an earlier run is open."""

    QUEUE = "queue"
    SKIP = "skip"
    CANCEL = "cancel"


Name = Annotated[
    str, argument("NAME", "The schedule, or WORKSPACE/NAME if several bundles have one of that name.")
]


@takes_client
def list_schedules(session: Session, client: Client) -> None:
    """List all schedules: those of bundles, and those that were added at run time.

    Missed are the slots that passed while no worker ran and that were not made up for, skipped those that
    came while an earlier run was open.
    """
    output = session.output
    found = client.schedules.list()
    columns: Columns[ScheduleState] = {
        "schedule": lambda one: one.full_name,
        "when": lambda one: when_text(one.schedule),
        "target": lambda one: _target(one.schedule),
        "next": lambda one: _next(one, output),
        "last": lambda one: _time(one.last_at, output),
        "ended": lambda one: one.last_outcome,
        "fired": lambda one: one.fired,
        "skipped": lambda one: one.skipped,
        "missed": lambda one: one.missed,
    }
    none = "There are no schedules: declare one in the bundle, or add one with `goondan schedules add`."
    answer = listing(
        found, columns, wire=ScheduleState.to_wire, none=none, unbroken="schedule", spare={"ended"}
    )
    pauses = (f"{one.full_name} is paused{_by(one)}" for one in found if one.paused)
    errors = (f"{one.full_name} failed last with {one.last_error}" for one in found if one.last_error)
    output.give(answer.document, answer.content, *answer.notes, *map(on_one_line, (*pauses, *errors)))


@takes_client
def add(
    session: Session,
    client: Client,
    name: Annotated[str, argument("NAME", "The name of the schedule; one that has it is replaced.")],
    agent: Annotated[str, argument("AGENT", "The agent.", autocompletion=complete_agent)],
    cron: Annotated[
        str | None, name_option("TEXT", "5 or 6 fields of cron, such as '0 9 * * MON-FRI'.")
    ] = None,
    every: Annotated[str | None, name_option("TIME", "An interval such as 90s, 15m, 12h or 1d.")] = None,
    time_zone: Annotated[str, name_option("ZONE", "The time zone of --cron, such as Europe/Berlin.")] = "UTC",
    jitter: Annotated[
        int, option("S", "Fire each slot up to S seconds later.", min=0, max=LONGEST_JITTER)
    ] = 0,
    catch_up: Annotated[
        CatchUpChoice,
        option("POLICY", "Which missed slots are fired: once (the latest), skip (none) or all."),
    ] = CatchUpChoice.ONCE,
    catch_up_limit: Annotated[
        int, option("N", "With --catch-up all: how many at most.", min=1, max=MOST_CAUGHT_UP)
    ] = CATCH_UP_LIMIT,
    overlap: Annotated[
        OverlapChoice,
        option("POLICY", "A slot that comes while a run is open: queue, skip, or cancel the run."),
    ] = OverlapChoice.QUEUE,
    input: Annotated[
        Any, option("INPUT", "The Turn's input: plain text, JSON text, @FILE, or -.", parser=parse_input)
    ] = None,
    tool: Annotated[
        str | None,
        name_option("TOOL", "Call this tool of the agent, by its full name, instead of a Turn."),
    ] = None,
    args: Annotated[
        Any, option("JSON", "The tool's arguments: a JSON object, @FILE, or -.", parser=parse_object)
    ] = None,
    instance: Annotated[
        str, name_option("K", "The instance; {{slot}} stands for the time of the slot.")
    ] = "default",
) -> None:
    """Add a schedule: by --cron or --every, a Turn of the agent, or with --tool a call of its tool.

    {{slot}} in the instance, the input and the arguments stands for the time of the slot, such as
    2026-12-01T09:00:00Z.
    """
    if (cron is None) == (every is None):
        raise typer.BadParameter("give either --cron or --every.")
    state = client.schedules.add(
        name,
        agent,
        input,
        cron=cron,
        every=every,
        time_zone=time_zone,
        jitter_seconds=jitter,
        catch_up=catch_up.value,
        catch_up_limit=catch_up_limit,
        overlap=overlap.value,
        tool=tool,
        args=args,
        instance_key=instance,
    )
    _tell(session.output, state)


@takes_client
def pause(
    session: Session,
    client: Client,
    name: Name,
    reason: Annotated[str, option("TEXT", "Why it is paused.")] = "",
    by: Annotated[str | None, option("NAME", "Who pauses it. Default: your login name.")] = None,
) -> None:
    """Pause a schedule: no slot is due until `goondan schedules resume`. Runs go on."""
    _tell(session.output, client.schedules.pause(name, reason, login() if by is None else by))


@takes_client
def resume(session: Session, client: Client, name: Name) -> None:
    """Resume a schedule with its next slot; the slots of the pause are not made up for."""
    _tell(session.output, client.schedules.resume(name))


@takes_client
def run(session: Session, client: Client, name: Name) -> None:
    """Fire a schedule now, outside its slots, whether it is paused or not; print the id of its run."""
    call_id = client.schedules.run(name).id
    session.output.give({"schedule": name, "id": call_id}, call_id)


@takes_client
def remove(session: Session, client: Client, name: Name) -> None:
    """Remove a schedule that was added at run time; its runs go on."""
    client.schedules.remove(name)
    session.output.give({"removed": name}, on_one_line(f"{name} is removed"))


def when_text(schedule: Schedule) -> str:
    """Write when a schedule is due: ``0 9 * * * Europe/Berlin``, or ``every 15m``."""
    return f"{schedule.cron} {schedule.time_zone}" if schedule.cron else f"every {schedule.every}"


def _target(schedule: Schedule) -> str:
    return f"{schedule.agent} {schedule.tool}" if schedule.tool else schedule.agent


def _next(state: ScheduleState, output: Output) -> str | None:
    return "paused" if state.paused else _time(state.due_at, output)


def _time(text: str | None, output: Output) -> str | None:
    return None if text is None else output.time(epoch_milliseconds(text))


def _by(state: ScheduleState) -> str:
    pause = state.paused
    who = f" by {pause.by}" if pause and pause.by else ""
    return f"{who}: {pause.reason}" if pause and pause.reason else who


def _tell(output: Output, state: ScheduleState) -> None:
    if state.paused:
        text = f"{state.full_name} is paused{_by(state)}"
    else:
        text = f"{state.full_name} is next due {_next(state, output) or 'never'}"
    output.give(state.to_wire(), on_one_line(text))
