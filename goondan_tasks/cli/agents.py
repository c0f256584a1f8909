"""Agents and instances: ``queues``, ``agents``, ``catalog``, ``shutdown``, ``instances`` and ``gc``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import count
from typing import Annotated, Any

import typer
from rich.text import Text

from broker_config import serializer
from broker_config.connections import reporting_outages
from goondan_tasks.cli.live_output import call_text, write_or_watch
from goondan_tasks.cli.options import (
    OfAgent,
    Watch,
    Yes,
    argument,
    complete_agent,
    complete_tool,
    flag,
    option,
    seconds_option,
)
from goondan_tasks.cli.output import (
    FAILED,
    Answer,
    Columns,
    Output,
    listing,
    local_time,
    show_progress,
)
from goondan_tasks.cli.session import (
    Session,
    can_ask,
    chosen_agents,
    login,
    require_agent,
    takes_client,
    takes_session,
)
from goondan_tasks.client import Client
from goondan_tasks.client.status import AgentState, AgentStatus, QueueStatus
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, InstanceNotFoundError
from goondan_tasks.contract.messages import Message, epoch_milliseconds
from goondan_tasks.contract.model_messages import told_text
from goondan_tasks.contract.names import OUTSIDE
from goondan_tasks.contract.table_rows import read_row
from goondan_tasks.contract.wording import counted, member, on_one_line, printable
from goondan_tasks.history.mailbox import Mailbox, WaitingEvent
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo

_NO_AGENT = "No agent is known: give --bundle PATH, or start a worker with `goondan worker`."
_QUEUES: Mapping[str, Callable[[QueueStatus], object]] = {
    "agent": lambda row: row.agent,
    "queue": lambda row: row.queue,
    "backlog": lambda row: row.backlog,
    "running": lambda row: row.running,
    "waiting for limit": lambda row: row.waiting_for_limit,
    "pending": lambda row: row.pending,
    "oldest": lambda row: None if row.oldest_seconds is None else f"{row.oldest_seconds:.0f} s",
    "workers": lambda row: row.workers,
}
#: columns that are shown only if they are not empty
_RARE: Mapping[str, Callable[[QueueStatus], int | str | None]] = {
    "paused": lambda status: _paused(status),
    "scheduled": lambda status: status.scheduled,
    "lost": lambda status: status.lost,
    "mailboxes": lambda status: status.mailboxes,
    "dead letters": lambda status: status.dead_letters,
}
_FILES = {
    "here": None,
    "kept": "kept: other agents work there",
    "absent": "none here",
    "elsewhere": "not below this state root",
    "removed": "removed",
    "left": "could not all be removed",
}
_AGENTS: Columns[AgentStatus] = {
    "agent": lambda status: status.record.name,
    "swarm": lambda status: status.record.swarm,
    "workspace": lambda status: status.record.workspace,
    "tools": lambda status: len(status.record.catalog),
    "backlog": lambda status: status.queue.backlog,
    "running": lambda status: status.queue.running,
    "state": lambda status: _state(status),
    "workers": lambda status: ", ".join(worker.name for worker in status.workers) or None,
}
_CATALOG: Columns[CatalogItem] = {
    "tool": lambda item: item.name,
    "arguments": lambda item: _arguments(item),
    "from": lambda item: item.source.name,
    "description": lambda item: item.description,
}
_REMOVALS: Columns[InstanceRemoval] = {
    "instance": lambda removal: removal.instance_key,
    "workspace": lambda removal: removal.workspace,
    "agents": lambda removal: ", ".join(removal.agents),
    "files": lambda removal: removal.path if removal.files == "here" else _FILES[removal.files],
    "stays because": lambda removal: removal.reason,
}
#: the progress is updated after this many removals
_STEP = 10


class CatalogFormat(StrEnum):
    """The form of a catalog: a table for people, or the JSON of the specification or of a provider."""

    TABLE = "table"
    JSON = "json"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


_WRITERS: dict[CatalogFormat, Callable[[ToolCatalog], Any]] = {
    CatalogFormat.OPENAI: ToolCatalog.to_openai,
    CatalogFormat.ANTHROPIC: ToolCatalog.to_anthropic,
    CatalogFormat.MCP: ToolCatalog.to_mcp,
}


@takes_client
def queues(session: Session, client: Client, agent: OfAgent = None, watch: Watch = None) -> None:
    """Show the state of every agent's queue: what waits, what runs, how many workers serve it.

    A call is running from its claim by a worker until it ends. A worker runs --concurrency calls at once,
    each in a slot. It may have claimed a few more to run next, and calls that wait for another agent hold no
    slot, so there can be more running calls than slots.

    Columns for scheduled and lost calls, mailboxes and dead letters appear only if there are any. A narrow
    terminal omits the names of the queues, which are "agent." and the agent's name.
    """
    if agent is not None:
        client.catalog(agent)

    def look() -> Answer:
        rows = [row for row in client.queues() if agent in {None, row.agent}]
        rare = {name: read for name, read in _RARE.items() if any(map(read, rows))}
        columns: Columns[QueueStatus] = {**_QUEUES, **rare}
        found = listing(rows, columns, none=_NO_AGENT, spare={"queue"})
        losses = (on_one_line(f"{row.agent}: {row.losses}") for row in rows if row.losses)
        pauses = (f"{on_one_line(one.target)} is {one.text}" for row in rows for one in row.paused)
        document = [row.model_dump(by_alias=True) for row in rows]
        return replace(
            found, document=document, notes=(*found.notes, *losses, *pauses, *_unhandled(client, rows))
        )

    return write_or_watch(look, session.output, watch)


def _unhandled(client: Client, rows: Iterable[QueueStatus]) -> Iterator[str]:
    """Yield a note on each agent whose events wait, and whose workers do not handle them."""
    waiting = [row.agent for row in rows if row.events or row.mailboxes]
    records = client.agents() if waiting else {}
    for agent in waiting:
        if agent in records and (reason := records[agent].unhandled) is not None:
            yield f"{agent}: {reason}"


@takes_client
def agents(session: Session, client: Client, watch: Watch = None) -> None:
    """List the agents that can be called: those of the bundle, and those that workers have announced.

    The state is running, idle, starting, crashLoopBackOff, or none if there is no worker. A narrow terminal
    omits swarm and workspace.
    """

    def look() -> Answer:
        statuses = client.agent_statuses()
        spare = {"swarm", "workspace"}
        found = listing(statuses, _AGENTS, wire=AgentStatus.to_wire, none=_NO_AGENT, spare=spare)
        troubles = (_trouble(status) for status in statuses if status.state is AgentState.CRASH_LOOP)
        pauses = (one for status in statuses for one in status.queue.paused)
        notes = (f"{on_one_line(one.target)} is {one.text}" for one in pauses)
        return replace(found, notes=(*found.notes, *troubles, *notes))

    return write_or_watch(look, session.output, watch)


@takes_session
def catalog(
    session: Session,
    agent: Annotated[
        str, argument("AGENT", "The agent whose tools are printed.", autocompletion=complete_agent)
    ],
    form: Annotated[CatalogFormat, flag("The form of the catalog.", "--format")] = CatalogFormat.TABLE,
) -> None:
    """Print an agent's Tool Catalog: from the bundle, or as its workers announced it without a valid bundle.

    Tools that extensions add are not declared in the bundle: they come from the workers.
    """
    tools = _catalog(session, agent)
    document = _WRITERS.get(form, ToolCatalog.to_wire)(tools)
    if form is not CatalogFormat.TABLE:
        return session.output.document(document)
    found = listing(tools, _CATALOG, unbroken="tool", spare={"from"})
    return session.output.give(document, found.content)


@takes_client
def shutdown(
    session: Session,
    client: Client,
    agent: Annotated[
        str | None, option("A", "The agent whose workers drain.", autocompletion=complete_agent)
    ] = None,
    worker: Annotated[
        str | None, option("NAME", "The worker to drain, as `goondan agents` names it.")
    ] = None,
    reason: Annotated[str, option("TEXT", "The reason, for the workers' logs.")] = "",
) -> None:
    """Ask the workers of an agent, or one worker, to drain as on SIGTERM; they notice within seconds.

    A worker of several agents keeps serving the others. If an orchestrator or a platform replaces workers,
    this is an orderly restart.
    """
    if bool(agent) == bool(worker):
        raise typer.BadParameter("give either --agent or --worker.")
    if worker is not None and worker not in {one.name for one in client.workers()}:
        raise typer.BadParameter(f"there is no worker {worker!r}; `goondan agents` lists the workers.")
    asked = [one.name for one in client.shutdown(agent, worker, reason)]
    session.output.give({"asked": asked}, "\n".join(map(on_one_line, asked)) or "There is no worker to ask.")


PausedAgent = Annotated[str, argument("AGENT", "The agent.", autocompletion=complete_agent)]
PausedTool = Annotated[
    str | None,
    argument("TOOL", "Only this tool of the agent, by its full name.", autocompletion=complete_tool),
]


@takes_client
def pause(
    session: Session,
    client: Client,
    agent: PausedAgent,
    tool: PausedTool = None,
    reason: Annotated[str, option("TEXT", "Why it is paused.")] = "",
    by: Annotated[str | None, option("NAME", "Who pauses it. Default: your login name.")] = None,
) -> None:
    """Pause an agent or one of its tools: no worker takes their calls until `goondan resume`.

    Workers notice within seconds; calls that run go on, and the others wait. Deadlines go on, too.
    """
    found = client.pause(agent, tool, reason, login() if by is None else by)
    words = agent if tool is None else f"{agent} {tool}"
    text = on_one_line(f"{found.target} is {found.text}; to end it: goondan resume {words}")
    session.output.give(found.to_wire(), text)


@takes_client
def resume(session: Session, client: Client, agent: PausedAgent, tool: PausedTool = None) -> None:
    """Resume a paused agent or tool: what waited runs, in the order in which it was queued."""
    was_paused = client.resume(agent, tool)
    target = on_one_line(agent if tool is None else f"{tool} of {agent}")
    text = f"{target} is resumed" if was_paused else f"{target} was not paused"
    others = [one for one in client.paused() if one.agent == agent]
    notes = (f"{on_one_line(one.target)} is still {one.text}" for one in others)
    session.output.give({"agent": agent, "tool": tool, "wasPaused": was_paused}, text, *notes)


@takes_client
def list_instances(session: Session, client: Client, agent: OfAgent = None) -> None:
    """List the instances, the most recently used first."""
    output, found = session.output, client.instances(agent)
    if not found:
        require_agent(client, agent)
    output.write(instances_table(found, output))


def instances_table(found: Sequence[InstanceInfo], output: Output) -> Answer:
    columns: Columns[InstanceInfo] = {
        "last used": lambda info: output.time(epoch_milliseconds(info.last_used_at)),
        "created": lambda info: output.time(epoch_milliseconds(info.created_at)),
        "agent": lambda info: info.target,
        "workspace": lambda info: info.workspace,
        "spawned by": lambda info: (
            None if info.owner_agent == OUTSIDE else f"{info.owner_agent}@{info.owner_instance_key}"
        ),
        "works in": lambda info: info.cwd,
        "instance": lambda info: info.instance_key,
    }
    none = "There are no instances: the first call or event creates one."
    wire = InstanceInfo.to_wire
    return listing(found, columns, wire=wire, none=none, unbroken="instance", spare={"created"})


@takes_client
def delete_instance(
    session: Session,
    client: Client,
    key: Annotated[str, argument("KEY", "The instance.")],
    agent: OfAgent = None,
    yes: Yes = False,
) -> None:
    """Delete an instance and its files, unless it has calls or events that are queued, waiting or running."""
    if can_ask(session.output) and not yes:
        session.output.write(_plan(client.delete_instance(key, agent, dry_run=True)))
    session.confirm(f"Delete instance {key!r}", is_confirmed=yes)
    _show_removals(client.delete_instance(key, agent), session.output)


@takes_client
def gc(
    session: Session,
    client: Client,
    older_than: Annotated[float, seconds_option("Those unused for S seconds, or 90s, 15m, 12h, 7d.")],
    unlisted: Annotated[
        bool, flag("Also directories unknown to Redis, if unchanged for as long.", "--unlisted")
    ] = False,
    dry_run: Annotated[bool, flag("Only show what would be removed.", "--dry-run")] = False,
    yes: Yes = False,
) -> None:
    """Remove instances that have long been unused, with their files below this state root.

    Instances with calls or events that are queued, waiting or running stay. Checkouts of bundle revisions on
    this machine (in GOONDAN_CACHE_DIR) that have been unused for as long are removed too.
    """
    output = session.output
    planned = client.collect_garbage(older_than, unlisted=unlisted, dry_run=True)
    leaving = [removal for removal in planned if removal.reason is None]
    if dry_run:
        return output.write(_plan(planned))
    if leaving and not yes and can_ask(output):
        output.write(_plan(leaving))
    session.confirm(f"Remove {counted(len(leaving), 'instance')}", is_confirmed=yes or not leaving)
    _clean_checkouts(session, older_than)
    numbers, total = count(1), len(leaving)

    def watch(_: InstanceRemoval) -> None:
        done = next(numbers)
        if total > _STEP and (done % _STEP == 0 or done >= total):
            show_progress(done, max(done, total), is_last=done >= total)

    removals = client.collect_garbage(older_than, unlisted=unlisted, watch=watch)
    _show_removals(removals, output)
    if any(removal.files == "left" for removal in removals):
        raise typer.Exit(FAILED)
    return None


def _state(status: AgentStatus) -> str:
    is_startable = status.is_orchestrated and not status.workers and status.state is AgentState.NONE
    return "none, started when needed" if is_startable else str(status.state)


def _paused(status: QueueStatus) -> str | None:
    """Name what is paused: the agent as a whole, or some of its tools."""
    if status.pause is not None:
        return "all"
    return ", ".join(one.tool for one in status.paused if one.tool) or None


def _trouble(status: AgentStatus) -> str:
    when = status.next_start_seconds or 0
    return (
        f"\n{status.record.name}: {status.backoff.crashes} workers in a row have crashed as soon as they "
        f"started; the next may start in {when:.0f} s.\n{status.backoff.reason}"
    )


def _catalog(session: Session, agent: str) -> ToolCatalog:
    settings = session.settings
    if settings.bundle is None:
        return _announced(session, agent)
    from goondan_tasks.bundle import build_catalog  # slow: it loads YAML

    try:
        bundle = session.bundle()
    except ConfigError:
        return _announced(session, agent)  # its client reports the fault
    [name] = chosen_agents(bundle, settings.swarm, [agent])
    declared = build_catalog(bundle, name)
    if not bundle.bound_extensions(name):
        return declared
    try:
        with reporting_outages():
            return _announced(session, name)
    except BrokerUnreachableError as error:
        session.output.note(f"Tools of the agent's extensions are missing: {error.message}")
        return declared


def _announced(session: Session, agent: str) -> ToolCatalog:
    with session.client() as client:
        items = [
            read_row(CatalogItem, serializer.encode(item), f"tool {item['name']!r} of agent {agent!r}")
            for item in client.catalog(agent)
        ]
    return ToolCatalog(tuple(filter(None, items)))


def _arguments(item: CatalogItem) -> str:
    """List the arguments, optional ones in brackets."""
    required, properties = (member(item.parameters, name) for name in ("required", "properties"))
    needed = required if isinstance(required, list) else []
    names = properties if isinstance(properties, Mapping) else {}
    return " ".join(name if name in needed else f"[{name}]" for name in names)


def _clean_checkouts(session: Session, older_than: float) -> None:
    from goondan_tasks.revisions.checkouts import clean_checkouts  # slow: it loads git's modules

    try:
        removed = clean_checkouts(session.settings.cache_path, older_than)
    except OSError as error:
        session.output.note(f"Some checkouts of revisions cannot be removed: {error}")
    else:
        if removed:
            session.output.note(f"Removed {counted(len(removed), 'checkout')} of revisions.")


def _plan(removals: Sequence[InstanceRemoval]) -> Answer:
    """List what would be removed and from where, and what would stay and why."""
    return listing(removals, _REMOVALS, wire=InstanceRemoval.to_wire, none="There is nothing to remove.")


def _show_removals(removals: Sequence[InstanceRemoval], output: Output) -> None:
    notable = {"absent", "elsewhere", "kept"}
    notes = [_note_of(one) for one in removals if one.reason is not None or one.files in notable]
    removed = sum(removal.removed for removal in removals)
    output.give([removal.to_wire() for removal in removals], f"removed {removed}", *notes)


def _note_of(removal: InstanceRemoval) -> str:
    name = repr(removal.instance_key) if removal.instance_key is not None else removal.path
    if not removal.removed:
        return f"instance {name} stays: {removal.reason}"
    place = f" ({removal.path})" if removal.files != "kept" else ""
    return f"files of instance {name}: {_FILES[removal.files]}{place}"


#: the most characters of a tool's result, or of a model's reasoning, that are shown
LONGEST_PART = 300


@takes_client
def show_instance(
    session: Session,
    client: Client,
    key: Annotated[str, argument("KEY", "The instance.")],
    messages: Annotated[bool, flag("Show the conversations of its agents that think.", "--messages")] = False,
    mailbox: Annotated[bool, flag("Show the events that wait for its agents.", "--mailbox")] = False,
    agent: OfAgent = None,
) -> None:
    """Show an instance: its agents; with --messages their conversations, with --mailbox what waits for them.

    Conversations are files in the instance's directory, so --messages works only where the state root is, for
    example on the worker's machine. Results of tools are shortened, except with --json.
    """
    if mailbox and messages:
        raise typer.BadParameter("--mailbox does not go with --messages.")
    if mailbox and agent is not None:  # the first event waits before there is an instance
        return _show_mailboxes([client.mailbox(agent, key)], session.output)
    found = client.instances(agent, key)
    if not found:
        whose = "" if agent is None else f" of agent {agent!r}"
        raise InstanceNotFoundError(f"No instance {key!r}{whose}.")
    output = session.output
    if mailbox:
        return _show_mailboxes([client.mailbox(info.target, key) for info in found], output)
    if not messages:
        return output.write(instances_table(found, output))
    said = {info.target: client.conversation(info.target, key) for info in found}
    return _show_conversations(key, said, output)


def _show_conversations(key: str, said: Mapping[str, Sequence[Message]], output: Output) -> None:
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
        output.note("There are no messages: only agents that think have some, after their first Turn.")
    return None


#: how much of an event's text a line of a mailbox shows, in characters
LONGEST_LINE = 120


def _show_mailboxes(boxes: Sequence[Mailbox], output: Output) -> None:
    if output.as_json:
        return output.document([box.to_wire() for box in boxes])
    columns: Columns[WaitingEvent] = {
        "since": lambda event: output.time(epoch_milliseconds(event.since)),
        "state": lambda event: event.state,
        "kind": lambda event: event.kind,
        "from": lambda event: event.sender if event.user is None else f"{event.sender} for {event.user}",
        "text": lambda event: _beginning(on_one_line(event.text.text)),
        "id": lambda event: output.call_id(event.id),
    }
    for box in boxes:
        more = box.count - len(box.events)
        notes = [] if more <= 0 else [f"{counted(more, 'more event')} of {box.agent}"]
        if len(boxes) > 1:
            output.print(Text(on_one_line(box.agent), style="bold underline"))
        answer = listing(
            box.events, columns, wire=WaitingEvent.to_wire, none="No event waits.", unbroken="id"
        )
        output.give(answer.document, answer.content, *answer.notes, *notes)
    return None


def _beginning(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def _show(message: Message, output: Output) -> None:
    role, at = str(message.data.get("role")), message.created_at
    with suppress(ValueError):  # an extension may have written something else
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
