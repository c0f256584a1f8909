"""Agents and their instances: ``queues``, ``agents``, ``catalog``, ``shutdown``, ``instances`` and ``gc``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from goondan_tasks.bundle import CatalogItem, ToolCatalog, build_catalog, load_bundle
from goondan_tasks.cli.options import OfAgent, Watch, Yes, parse_seconds
from goondan_tasks.cli.output import FAILED, Answer, Output, listing
from goondan_tasks.cli.session import Session, can_ask, chosen_agents, takes_session
from goondan_tasks.cli.waiting import give
from goondan_tasks.client.status import AgentState, AgentStatus, QueueStatus
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.names import OUTSIDE
from goondan_tasks.revisions.checkouts import clean_checkouts

_NO_AGENT = "No agent is known: give --bundle PATH, or start a worker with `goondan worker`."
_QUEUES: dict[str, Callable[[QueueStatus], object]] = {
    "agent": lambda row: row.agent,
    "queue": lambda row: row.queue,
    "backlog": lambda row: row.backlog,
    "running": lambda row: row.running,
    "waiting for limit": lambda row: row.waiting_for_limit,
    "pending": lambda row: row.pending,
    "oldest": lambda row: None if row.oldest_seconds is None else f"{row.oldest_seconds:.0f} s",
    "workers": lambda row: row.workers,
}
#: columns that come only where there is something in them
_RARE: dict[str, Callable[[QueueStatus], int]] = {
    "mailboxes": lambda status: status.mailboxes,
    "dead letters": lambda status: status.dead_letters,
}
_FILES = {
    "here": None,
    "kept": "stay, other agents work there",
    "absent": "none here",
    "elsewhere": "not below this state root",
    "removed": "removed",
    "left": "not all could be removed",
}
_AGENTS: dict[str, Callable[[AgentStatus], object]] = {
    "agent": lambda status: status.record.name,
    "swarm": lambda status: status.record.swarm,
    "workspace": lambda status: status.record.workspace,
    "tools": lambda status: len(status.record.catalog),
    "backlog": lambda status: status.queue.backlog,
    "running": lambda status: status.queue.running,
    "state": lambda status: _state(status),
    "workers": lambda status: ", ".join(worker.name for worker in status.workers) or None,
}
_CATALOG: dict[str, Callable[[CatalogItem], object]] = {
    "tool": lambda item: item.name,
    "arguments": lambda item: _arguments(item),
    "from": lambda item: item.source.name,
    "description": lambda item: item.description,
}
_REMOVALS: dict[str, Callable[[InstanceRemoval], object]] = {
    "instance": lambda removal: removal.instance_key,
    "workspace": lambda removal: removal.workspace,
    "agents": lambda removal: ", ".join(removal.agents),
    "files": lambda removal: removal.path if removal.files == "here" else _FILES[removal.files],
    "stays because": lambda removal: removal.reason,
}
#: the counter is renewed after so many removals
_STEP = 10


class Format(StrEnum):
    """How a catalog is written: for people, or as the JSON of the specification or a provider."""

    TABLE = "table"
    JSON = "json"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


_WRITERS: dict[Format, Callable[[ToolCatalog], Any]] = {
    Format.TABLE: ToolCatalog.to_wire,
    Format.JSON: ToolCatalog.to_wire,
    Format.OPENAI: ToolCatalog.to_openai,
    Format.ANTHROPIC: ToolCatalog.to_anthropic,
    Format.MCP: ToolCatalog.to_mcp,
}


@takes_session
def queues(session: Session, agent: OfAgent = None, watch: Watch = None) -> None:
    """Show how every agent's queue stands: what waits, what runs, how many workers serve it.

    Mailboxes and dead letters have columns where there are any. On a narrow terminal the queues' names are
    left out: they are the agents' behind "agent.".
    """
    with session.client() as client:
        if agent is not None:
            client.catalog(agent)
        return give(
            lambda: _queues([row for row in client.queues() if agent in {None, row.agent}]),
            session.output,
            watch,
        )


@takes_session
def agents(session: Session, watch: Watch = None) -> None:
    """List the agents that can be called: those of the bundle, and those that workers have announced.

    Their state is running, idle, starting, crashLoopBackOff or none, which means that there is no worker.
    On a narrow terminal swarm and workspace are left out.
    """
    with session.client() as client:
        return give(lambda: _agents(client.agent_statuses()), session.output, watch)


@takes_session
def catalog(
    session: Session,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent whose tools are printed.")],
    form: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.TABLE,
) -> None:
    """Print an agent's Tool Catalog: from the bundle, or as its workers announced it if none is set.

    An agent with extensions may have more tools than its bundle says: those are asked for as well."""
    tools = _catalog(session, agent)
    document = _WRITERS[form](tools)
    if form is not Format.TABLE:
        return session.output.document(document)
    found = listing(tools, _CATALOG, unbroken="tool", spare={"from"})
    return session.output.give(document, found.content)


@takes_session
def shutdown(
    session: Session,
    agent: Annotated[
        str | None, typer.Option(metavar="A", help="The agent whose workers are to drain.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one worker, as `goondan agents` names it.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason for their logs.")] = "",
) -> None:
    """Ask the workers of an agent, or one worker, to drain as they do on SIGTERM, within seconds.

    A worker of several agents goes on for the others. Where an orchestrator or a platform keeps workers
    running, new ones take their place: a restart in order.
    """
    if bool(agent) == bool(worker):
        raise typer.BadParameter("Name either an agent (--agent) or a worker (--worker).")
    with session.client() as client:
        if worker is not None and worker not in {one.name for one in client.workers()}:
            raise typer.BadParameter(f"There is no worker {worker!r}; `goondan agents` names them.")
        asked = [one.name for one in client.shutdown(agent, worker, reason)]
    session.output.give({"asked": asked}, "\n".join(asked) or "There is no worker to ask.")


@takes_session
def list_instances(session: Session, agent: OfAgent = None) -> None:
    """List the instances, the one used last first."""
    output = session.output
    with session.client() as client:
        found = client.instances(agent)
        if not found and agent is not None:
            client.catalog(agent)  # an unknown agent is misspelt
    columns: dict[str, Callable[[InstanceInfo], object]] = {
        "last used": lambda info: output.time(epoch_milliseconds(info.last_used_at)),
        "created": lambda info: output.time(epoch_milliseconds(info.created_at)),
        "agent": lambda info: info.target,
        "workspace": lambda info: info.workspace,
        "spawned by": _owner,
        "works in": lambda info: info.cwd,
        "instance": lambda info: info.instance_key,
    }
    none = "There are no instances: the first call or event makes one."
    wire = InstanceInfo.to_wire
    output.write(listing(found, columns, wire=wire, none=none, unbroken="instance", spare={"created"}))


@takes_session
def delete_instance(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The instance.")],
    agent: OfAgent = None,
    yes: Yes = False,
) -> None:
    """Delete an instance with its files, unless calls or events of it are queued, waiting or running."""
    with session.client() as client:
        if can_ask(session.output) and not yes:
            session.output.write(_plan(client.delete_instance(key, agent, dry_run=True)))
        session.confirm(f"Delete instance {key!r}", is_confirmed=yes)
        return _show_removals(client.delete_instance(key, agent), session.output)


@takes_session
def gc(
    session: Session,
    older_than: Annotated[
        float,
        typer.Option(
            parser=parse_seconds, metavar="S", help="Those unused for S seconds, or 90s, 15m, 12h, 7d."
        ),
    ],
    unlisted: Annotated[
        bool,
        typer.Option(
            "--unlisted", help="Directories that Redis does not know, too, if nothing in them has changed."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Yes = False,
) -> None:
    """Remove the instances that have been unused for long, with their files below this state root.

    Those with calls or events that are queued, waiting or running stay. Checkouts of bundle revisions on
    this machine (GOONDAN_CACHE_DIR) that have been unused for as long are removed too.
    """
    output = session.output
    if not dry_run:
        _clean_checkouts(session, older_than)
    with session.client() as client:
        planned = client.collect_garbage(older_than, unlisted=unlisted, dry_run=True)
        leaving = [removal for removal in planned if removal.reason is None]
        if dry_run:
            return output.write(_plan(planned))
        if leaving and not yes and can_ask(output):
            output.write(_plan(leaving))
        session.confirm(f"Remove {len(leaving)} instances", is_confirmed=yes or not leaving)
        removals = client.collect_garbage(older_than, unlisted=unlisted, watch=_counter(len(leaving)))
    _show_removals(removals, output)
    if any(removal.files == "left" for removal in removals):
        raise typer.Exit(FAILED)
    return None


def _queues(rows: list[QueueStatus]) -> Answer:
    rare = {name: count for name, count in _RARE.items() if any(map(count, rows))}
    return listing(
        rows,
        {**_QUEUES, **rare},
        wire=lambda row: row.model_dump(by_alias=True),
        none=_NO_AGENT,
        spare={"queue"},
    )


def _agents(statuses: list[AgentStatus]) -> Answer:
    spare = {"swarm", "workspace"}
    found = listing(statuses, _AGENTS, wire=AgentStatus.to_wire, none=_NO_AGENT, spare=spare)
    troubles = (_trouble(status) for status in statuses if status.state is AgentState.CRASH_LOOP)
    return replace(found, notes=(*found.notes, *troubles))


def _state(status: AgentStatus) -> str:
    is_startable = status.is_orchestrated and not status.workers and status.state is AgentState.NONE
    return "none, started when needed" if is_startable else str(status.state)


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
    bundle = load_bundle(settings.bundle)
    [name] = chosen_agents(bundle, settings.swarm, [agent])
    declared = build_catalog(bundle, name)
    if not bundle.bound_extensions(name):
        return declared
    try:
        return _announced(session, name)
    except BrokerUnreachableError as error:
        session.output.note(f"Without the tools of the agent's extensions: {error.message}")
        return declared


def _announced(session: Session, agent: str) -> ToolCatalog:
    with session.client() as client:
        return ToolCatalog(tuple(map(CatalogItem.from_wire, client.catalog(agent))))


def _arguments(item: CatalogItem) -> str:
    """Name the arguments; optional ones in brackets."""
    parameters = item.parameters or {}
    required = parameters.get("required") or []
    names = parameters.get("properties") or {}
    return " ".join(name if name in required else f"[{name}]" for name in names)


def _owner(info: InstanceInfo) -> str | None:
    return None if info.owner_agent == OUTSIDE else f"{info.owner_agent}@{info.owner_instance_key}"


def _clean_checkouts(session: Session, older_than: float) -> None:
    try:
        removed = clean_checkouts(session.settings.cache_path, older_than)
    except OSError as error:
        session.output.note(f"Not all checkouts of revisions can be removed: {error}")
    else:
        if removed:
            session.output.note(f"Removed {len(removed)} checkouts of revisions.")


def _plan(removals: Sequence[InstanceRemoval]) -> Answer:
    """Tell what would be removed, and from where; and what would not be, and why."""
    return listing(removals, _REMOVALS, wire=InstanceRemoval.to_wire, none="There is nothing to remove.")


def _show_removals(removals: Sequence[InstanceRemoval], output: Output) -> None:
    notes = (
        _told(removal)
        for removal in removals
        if removal.reason is not None or removal.files in {"absent", "elsewhere", "kept"}
    )
    count = sum(removal.removed for removal in removals)
    if not output.as_json:
        for note in notes:
            output.note(note)
    output.give([removal.to_wire() for removal in removals], f"removed {count}")


def _told(removal: InstanceRemoval) -> str:
    name = repr(removal.instance_key) if removal.instance_key is not None else removal.path
    if not removal.removed:
        return f"instance {name} stays: {removal.reason}"
    place = f" ({removal.path})" if removal.files != "kept" else ""
    return f"files of instance {name}: {_FILES[removal.files]}{place}"


def _counter(total: int) -> Callable[[InstanceRemoval], None]:
    """Return what counts removals on one line, where a person sees it."""
    done = 0

    def count(removal: InstanceRemoval) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty() and total > _STEP and (done % _STEP == 0 or done >= total):
            sys.stderr.write(f"{done:,} of {max(done, total):,}{chr(10) if done >= total else chr(13)}")
            sys.stderr.flush()

    return count
