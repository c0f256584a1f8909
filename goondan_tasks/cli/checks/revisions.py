"""Do the workers that follow a bundle's revisions run the same one?"""

from collections.abc import Iterable, Mapping, Sequence

from goondan_tasks.cli.checks.check import Check
from goondan_tasks.revisions.active import RevisionState
from goondan_tasks.roster import AgentRecord, WorkerRecord


def revision_checks(
    states: Mapping[str, RevisionState], agents: Mapping[str, AgentRecord], workers: Sequence[WorkerRecord]
) -> list[Check]:
    """Check each workspace in which revisions are followed, by its record and its agents' workers."""
    return [
        check
        for workspace, state in states.items()
        for check in (
            _active(workspace, state, _workers_in(workspace, agents, workers)),
            _proposed(state),
            _failed(state),
        )
        if check is not None
    ]


def _workers_in(
    workspace: str, agents: Mapping[str, AgentRecord], workers: Sequence[WorkerRecord]
) -> list[WorkerRecord]:
    inside = {name for name, record in agents.items() if record.workspace == workspace}
    return [worker for worker in workers if inside.intersection(worker.agents)]


def _active(workspace: str, state: RevisionState, workers: Iterable[WorkerRecord]) -> Check:
    name = f"revision of {workspace}"
    others = [
        f"{worker.name} runs {worker.bundle_ref or 'what it started with'}"
        for worker in workers
        if worker.bundle_ref != state.active
    ]
    if not others:
        return Check(name, "ok", f"{state.active} is active")
    return Check(
        name,
        "warning",
        f"{state.active} is active, but {', '.join(others)}",
        "A worker takes a moment to follow. One that does not cannot get it: its log says why; "
        "GOONDAN_BUNDLE_REMOTE must name a remote that has it.",
    )


def _proposed(state: RevisionState) -> Check | None:
    if state.proposed is None:
        return None
    return Check(
        "proposed revision",
        "warning",
        f"{state.proposed.new_ref} was proposed at {state.proposed.timestamp}, and no worker has loaded it",
        "Start a worker, or look at the logs of those that run.",
    )


def _failed(state: RevisionState) -> Check | None:
    failed = state.failed
    if failed is None or failed.ref == state.active:
        return None
    return Check(
        "failed revision",
        "warning",
        f"{failed.ref} could not be loaded by {failed.worker} at {failed.timestamp}: "
        f"{failed.code}: {failed.reason}",
        f"Correct the bundle and commit it; {state.active} goes on.",
    )
