"""Checks of the agents and workers that Redis knows, for ``goondan doctor``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from goondan_tasks.cli.output import local_time
from goondan_tasks.client.status import AgentState, AgentStatus, UnfetchedMail
from goondan_tasks.contract.messages import JsonObject, epoch_milliseconds
from goondan_tasks.contract.schedules import LATE_MS
from goondan_tasks.contract.wording import counted, duration_text, on_one_line
from goondan_tasks.fleet.agent_registry import AgentRecord, McpServerRecord, WorkerRecord
from goondan_tasks.fleet.call_counts import REQUEUED, Settlement
from goondan_tasks.fleet.connections import ConnectionStatus
from goondan_tasks.ledger.reaper import CAUSES
from goondan_tasks.ledger.schedules import ScheduleState
from goondan_tasks.revisions.active import RevisionState, UnreadableRevisionsError

#: how many workers a check names
_NAMED = 5

Level = Literal["ok", "warning", "problem"]


class Check(NamedTuple):
    """The result of a check, and what to do unless it is ``ok``."""

    name: str
    level: Level
    message: str
    remedy: str | None = None

    def to_wire(self) -> JsonObject:
        """Return the check as ``goondan doctor --json`` prints it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def fleet_checks(
    agents: Mapping[str, AgentRecord],
    announced: Mapping[str, AgentRecord],
    workers: Sequence[WorkerRecord],
    *,
    statuses: Iterable[AgentStatus] = (),
) -> list[Check]:
    """Check that every agent has workers, and that these fit together.

    ``agents`` are those of the bundle, if there is one; ``announced`` are those of the workers; ``statuses``
    hold the state of their queues and of crashing workers.
    """
    if not agents:
        return [Check("agents", "warning", "none is known", "Set GOONDAN_BUNDLE, or start a worker.")]
    by_name = {status.record.name: status for status in statuses}
    return [
        *(_workers_check(name, workers, by_name.get(name)) for name in agents),
        *_system_checks(workers),
        *_place_checks(agents, workers),
        *_state_root_checks(workers),
        *_catalog_checks(agents, announced, workers),
    ]


def _workers_check(agent: str, workers: Iterable[WorkerRecord], status: AgentStatus | None) -> Check:
    name = f"workers of {agent}"
    if names := [worker.name for worker in workers if agent in worker.agents]:
        return Check(name, "ok", ", ".join(names))
    if status is not None and status.state is AgentState.STARTING:
        return Check(name, "ok", "none yet: one is starting")
    if status is not None and status.state is AgentState.CRASH_LOOP:
        message = f"crash as soon as they start: {status.backoff.reason or 'for an unknown reason'}"
        remedy = f"Correct that; the next start is in {status.next_start_seconds:g} s."
        return Check(name, "warning", message, remedy)
    waits = False
    if status is not None:
        record, waits = status.record, status.waits_for_workers  # mail_check looks at events for producers
        if not waits and not record.has_entry and not record.catalog:
            return Check(name, "ok", "none is needed: it has no tools, and a producer handles its events")
        if not waits and status.is_orchestrated:
            return Check(name, "ok", "none; an orchestrator starts one when needed")
    message = "none: calls or events wait" if waits else "none"
    return Check(name, "warning", message, f"Start one: goondan worker --agent {agent}")


def pause_checks(statuses: Iterable[AgentStatus]) -> Iterator[Check]:
    """Warn of what is paused."""
    for pause in (pause for status in statuses for pause in status.queue.paused):
        words = pause.agent if pause.tool is None else f"{pause.agent} {pause.tool}"
        yield Check(f"pause of {pause.target}", "warning", pause.text, f"To end it: goondan resume {words}")


def schedule_checks(states: Iterable[ScheduleState], now: float) -> Iterator[Check]:
    """Say when schedules are due; warn of those that are paused, failed last, or that no worker fires.

    ``now`` is Redis' time in ms.
    """
    for one in states:
        name, words = f"schedule {one.full_name}", f"goondan schedules resume {one.full_name}"
        due = None if one.due_at is None else epoch_milliseconds(one.due_at)
        last = "" if one.last_at is None else f", last {local_time(epoch_milliseconds(one.last_at))}"
        missed = f", {counted(one.missed, 'slot')} missed" if one.missed else ""
        if one.paused is not None:
            why = f": {one.paused.reason}" if one.paused.reason else ""
            yield Check(name, "warning", on_one_line(f"paused{why}{last}{missed}"), f"To end it: {words}")
        elif due is not None and now - due > LATE_MS:
            late = duration_text((now - due) / 1000)
            remedy = f"Start a worker of its bundle: goondan worker --agent {one.schedule.agent}"
            yield Check(name, "warning", f"due for {late}: no worker fires it{last}{missed}", remedy)
        elif one.last_error:
            remedy = f"goondan show {one.last_id}, and goondan trace with its id."
            yield Check(name, "warning", on_one_line(f"failed last: {one.last_error}{missed}"), remedy)
        else:
            yield Check(name, "ok", f"next {'never' if due is None else local_time(due)}{last}{missed}")


def connection_checks(statuses: Iterable[ConnectionStatus]) -> Iterator[Check]:
    """Say where the Connections of the bundle run; warn of those that no process runs."""
    for one in statuses:
        name, events = f"connection {one.name}", counted(one.events, "event")
        last = (
            "" if one.last_event_at is None else f", last {local_time(epoch_milliseconds(one.last_event_at))}"
        )
        failed = f"; it failed last with: {one.last_error}" if one.last_error else ""
        if one.state == "running":
            yield Check(name, "ok", on_one_line(f"runs in {one.process}, {events}{last}"))
        else:
            remedy = f"Start it: goondan connectors run {one.name}"
            yield Check(name, "warning", on_one_line(f"no process runs it, {events}{last}{failed}"), remedy)


def loss_checks(statuses: Iterable[AgentStatus]) -> Iterator[Check]:
    """Warn of calls that were lost with their workers and not recovered yet."""
    for status in statuses:
        if status.queue.losses:
            agent = status.record.name
            remedy = (
                "The next worker, or a producer that waits for them, reruns them or ends them with "
                f"E_TOOL_OUTCOME_UNKNOWN. Start a worker: goondan worker --agent {agent}"
            )
            yield Check(f"calls of {agent}", "warning", status.queue.losses, remedy)


def past_loss_checks(losses: Sequence[Settlement], seconds: float) -> Iterator[Check]:
    """Warn of calls that were lost with their workers and settled in the last ``seconds``."""
    for agent in sorted({one.agent for one in losses}):
        own = [one for one in losses if one.agent == agent]
        ends = Counter("run again" if one.code == REQUEUED else one.code for one in own)
        ended = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        workers = ", ".join(sorted({one.lost_by for one in own})[:_NAMED])
        message = (
            f"{counted(len(own), 'call')} lost in the last {duration_text(seconds)}, when leases of "
            f"{workers} ended{CAUSES}: {ended}"
        )
        latest = own[-1].call_id
        remedy = f"goondan show {latest}, and look for call.settled in the logs of the workers."
        yield Check(f"lost calls of {agent}", "warning", message, remedy)


def dead_letter_checks(statuses: Iterable[AgentStatus]) -> Iterator[Check]:
    """Warn of dead letters."""
    for status in statuses:
        if status.queue.dead_letters:
            agent = status.record.name
            message = (
                f"{counted(status.queue.dead_letters, 'call')} killed workers in every run, or held no call"
            )
            remedy = (
                f"goondan dead-letters list --agent {agent}; then `goondan dead-letters replay` or `drop`."
            )
            yield Check(f"dead letters of {agent}", "warning", message, remedy)


def _grouped(rows: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, list[str]]]:
    """Group the names of workers by agent, then by the property that they should share."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for agent, common, worker in rows:
        found[agent][common].append(worker)
    return dict(sorted(found.items()))


def _system_checks(workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Warn of agents whose name two systems use: their calls share a queue."""
    systems = _grouped(
        (agent, f"swarm {worker.swarm} in workspace {worker.workspace}", worker.name)
        for worker in workers
        if worker.swarm
        for agent in worker.agents
    )
    remedy = "Give each system its own database: GOONDAN_REDIS_URL=redis://HOST:6379/1."
    for agent, found in systems.items():
        if len(found) > 1:
            named = "; ".join(f"{system} ({', '.join(names)})" for system, names in found.items())
            message = f"workers of {len(found)} systems share its queue: {named}"
            yield Check(f"systems of {agent}", "warning", message, remedy)


def _place_checks(agents: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Warn of agents whose workers are in another workspace than ours."""
    places = _grouped(
        (agent, worker.workspace, worker.name)
        for worker in workers
        for agent in worker.agents
        if worker.workspace and agent in agents
    )
    remedy = "Give both the same Package or GOONDAN_WORKSPACE; without these the bundle's folder decides."
    for agent, found in places.items():
        ours, [theirs, *others] = agents[agent].workspace, found
        if theirs != ours and not others:  # several are reported as systems
            message = f"{ours} for this bundle, but {theirs} for its workers: {', '.join(found[theirs])}"
            yield Check(f"workspace of {agent}", "warning", message, remedy)


def _state_root_checks(workers: Iterable[WorkerRecord]) -> list[Check]:
    roots = _grouped(
        (agent, worker.root_id, worker.name)
        for worker in workers
        for agent in set(worker.agents) - set(worker.local_workdir)
    )
    remedy = (
        "Put the GOONDAN_STATE_ROOT of all of them on one shared volume, "
        "or give the Agent `workdir: local` if its workers may use separate files."
    )
    checks = []
    for agent, by_root in roots.items():
        if len(by_root) > 1:
            groups = " and ".join(", ".join(names) for names in by_root.values())
            message = f"workers of {agent} see different files: {groups}"
            checks.append(Check("state roots", "problem", message, remedy))
    return checks or ([Check("state roots", "ok", "each agent's workers share one")] if roots else [])


def _catalog_checks(
    agents: Mapping[str, AgentRecord], announced: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]
) -> Iterator[Check]:
    message = "its workers serve another version of the bundle"
    remedy = "Restart the workers with this bundle, or set GOONDAN_BUNDLE to theirs."
    for name in {agent: None for worker in workers for agent in worker.agents if agent in agents}:
        theirs = announced.get(name)
        # workers with the same bundle announce the same, apart from the tools of extensions
        if theirs is not None and theirs.catalog != agents[name].with_dynamic_tools(theirs).catalog:
            yield Check(f"catalog of {name}", "warning", message, remedy)


def mail_check(mail: UnfetchedMail) -> Check:
    """Warn that events for an agent without an entry wait, and no producer receives them."""
    many = "1 mailbox" if mail.mailboxes == 1 else f"{mail.mailboxes} mailboxes"
    message = f"events have waited in {many} for {duration_text(mail.seconds)}, and no producer fetches them"
    remedy = (
        f"Run a producer that calls client.receive({mail.agent!r}), or give the Agent an entry, so that its "
        "workers handle the events; otherwise they expire."
    )
    return Check(f"events of {mail.agent}", "warning", message, remedy)


def mcp_server_checks(workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Check each MCP server of each agent, as its workers report it."""
    reported: defaultdict[tuple[str, str], dict[str, McpServerRecord]] = defaultdict(dict)
    for worker in workers:
        for server in worker.mcp_servers:
            reported[server.agent, server.name][worker.name] = server
    for (agent, name), records in sorted(reported.items()):
        yield _mcp_server_check(f"MCP server {name} of {agent}", records)


def _mcp_server_check(title: str, records: Mapping[str, McpServerRecord]) -> Check:
    down = {worker: record for worker, record in records.items() if not record.is_up}
    left_out = {tool: reason for record in records.values() for tool, reason in record.left_out.items()}
    if not down and left_out:
        message = "; ".join(f"{tool}: {reason}" for tool, reason in left_out.items())
        remedy = "Correct these tools in the server. Its other tools can be called."
        return Check(title, "warning", f"tools are left out: {message}", remedy)
    if not down:
        tools = max(record.tools for record in records.values())
        times = sum(record.failures for record in records.values())
        losses = f"lost {counted(times, 'time')}" if times else "never lost"
        return Check(title, "ok", f"{counted(tools, 'tool')}; {losses}")
    worker, record = next(iter(down.items()))
    share = f"{len(down)} of {len(records)} workers; in " if len(records) > 1 else ""
    remedy = "Fix the server, or its command, address or environment in the extension's config."
    return Check(title, "warning", f"down in {share}{worker}: {record.reason}", remedy)


def revision_checks(
    states: Mapping[str, RevisionState | UnreadableRevisionsError | None],
    agents: Mapping[str, AgentRecord],
    workers: Sequence[WorkerRecord],
) -> Iterator[Check]:
    """Check that the workers of each workspace that follows revisions run the same one."""
    for workspace, state in states.items():
        if state is None:
            continue
        if isinstance(state, UnreadableRevisionsError):
            yield Check(f"revision of {workspace}", "problem", state.message, state.suggestion)
            continue
        inside = {name for name, record in agents.items() if record.workspace == workspace}
        own = [worker for worker in workers if inside.intersection(worker.agents)]
        yield from _revision_checks(f"revision of {workspace}", state, own)


def _revision_checks(name: str, state: RevisionState, workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    others = [
        f"{worker.name} runs {worker.bundle_ref or 'the bundle it started with'}"
        for worker in workers
        if worker.bundle_ref != state.active
    ]
    if others:
        remedy = (
            "A worker takes a moment to follow. If one does not, its log says why; "
            "GOONDAN_BUNDLE_REMOTE must name a remote that has the revision."
        )
        yield Check(name, "warning", f"{state.active} is active, but {', '.join(others)}", remedy)
    else:
        yield Check(name, "ok", f"{state.active} is active")
    if (proposed := state.proposed) is not None:
        message = f"{proposed.new_ref} was proposed at {proposed.timestamp}, and no worker has loaded it"
        remedy = "Start a worker, or check the logs of the running ones."
        yield Check("proposed revision", "warning", message, remedy)
    if (failed := state.failed) is not None and failed.ref != state.active:
        place = f"by {failed.worker} at {failed.timestamp}: {failed.code}: {failed.reason}"
        remedy = f"Fix the bundle and commit it; {state.active} stays active."
        yield Check("failed revision", "warning", f"{failed.ref} could not be loaded {place}", remedy)
