"""Are there workers for every agent, and do they belong together?"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from goondan_tasks.cli.checks.check import Check
from goondan_tasks.client.agent_status import AgentState, AgentStatus
from goondan_tasks.roster import AgentRecord, WorkerRecord


def fleet_checks(
    agents: Mapping[str, AgentRecord],
    announced: Mapping[str, AgentRecord],
    workers: Sequence[WorkerRecord],
    *,
    statuses: Iterable[AgentStatus] = (),
) -> list[Check]:
    """Check each agent's workers, state roots and catalog.

    ``agents`` are those of our bundle, if there is one; ``announced`` are those of the workers;
    ``statuses`` say how their queues and starts stand.
    """
    standing = {status.record.name: status for status in statuses}
    if not agents:
        remedy = "Set GOONDAN_BUNDLE, or start a worker."
        return [Check("agents", "warning", "none is known", remedy)]
    return [
        *(_workers_of(name, workers, standing.get(name)) for name in agents),
        *_systems(workers),
        *_state_roots(workers),
        *_catalogs(agents, announced, workers),
    ]


def _workers_of(agent: str, workers: Iterable[WorkerRecord], status: AgentStatus | None) -> Check:
    name = f"workers of {agent}"
    names = [worker.name for worker in workers if agent in worker.agents]
    if names:
        return Check(name, "ok", ", ".join(names))
    if status is not None and status.state is AgentState.CRASH_LOOP:
        message = f"crash as soon as they start: {status.upkeep.reason or 'for an unknown reason'}"
        remedy = f"Correct that; the next start is in {status.next_start_seconds:g} s."
        return Check(name, "warning", message, remedy)
    waits = status is not None and (status.queue.backlog or status.queue.waiting_for_limit)
    message = "none: calls or events wait" if waits else "none"
    return Check(name, "warning", message, f"Start one: goondan worker --agent {agent}")


def _systems(workers: Iterable[WorkerRecord]) -> list[Check]:
    """Warn of agents whose name two systems have: their calls are in one queue."""
    systems: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in workers:
        for agent in worker.agents if worker.swarm else ():
            systems[agent][f"swarm {worker.swarm} in workspace {worker.workspace}"].append(worker.name)
    remedy = "Give each system a database of its own: GOONDAN_REDIS_URL=redis://HOST:6379/1."
    return [
        Check(
            f"systems of {agent}",
            "warning",
            f"workers of {len(found)} share its queue: {_named(found)}",
            remedy,
        )
        for agent, found in sorted(systems.items())
        if len(found) > 1
    ]


def _named(systems: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{system} ({', '.join(names)})" for system, names in systems.items())


def _state_roots(workers: Iterable[WorkerRecord]) -> list[Check]:
    roots: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in workers:
        for agent in set(worker.agents) - set(worker.local_workdir):
            roots[agent][worker.root_id].append(worker.name)
    split = {agent: by_root for agent, by_root in sorted(roots.items()) if len(by_root) > 1}
    if not split:
        return [Check("state roots", "ok", "each agent's workers share one")] if roots else []
    return [_split_root(agent, by_root) for agent, by_root in split.items()]


def _split_root(agent: str, by_root: Mapping[str, Sequence[str]]) -> Check:
    groups = " and ".join(", ".join(names) for names in by_root.values())
    remedy = (
        "Put GOONDAN_STATE_ROOT of all of them on one shared volume, "
        "or give the Agent `workdir: local` if it may work on separate files."
    )
    return Check("state roots", "problem", f"workers of {agent} see different files: {groups}", remedy)


def _catalogs(
    agents: Mapping[str, AgentRecord], announced: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]
) -> list[Check]:
    served = {agent for worker in workers for agent in worker.agents}
    other = [
        name
        for name, record in agents.items()
        if name in served and name in announced and not _is_of(record, announced[name])
    ]
    remedy = "Restart the workers with this bundle, or set GOONDAN_BUNDLE to theirs."
    return [
        Check(f"catalog of {name}", "warning", "its workers serve another version of the bundle", remedy)
        for name in other
    ]


def _is_of(record: AgentRecord, announced: AgentRecord) -> bool:
    """Say whether workers with the same bundle announce this; the tools of extensions are not in it."""
    return announced.catalog == record.with_dynamic_tools(announced).catalog
