"""The fast path of a worker: marks and results of many calls in one packet, as the real lead sends them."""

from collections.abc import Sequence
from functools import partial
from random import Random

from broker_config import serializer
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.events import is_event
from goondan_tasks.ledger.record import Claim
from tests.simulation.limit_invariants import require_released
from tests.simulation.parts import LeadJob
from tests.simulation.workers import ask_for_key, note_mark
from tests.simulation.world import BrokenPromiseError, Worker, World
from workers.job import JobState
from workers.pool.lead import GROUP, MOST_RESULTS


def mark_by_lead(world: World, pick: Random) -> bool:
    """Mark the next calls of a worker as its lead does."""
    unmarked = partial(
        Worker.held_if, wanted=lambda held: not held.is_marked and not is_event(held.claim.run.call)
    )
    worker = world.awake(pick, unmarked)
    if worker is None:
        return False
    group = unmarked(worker)[:GROUP]
    jobs = [LeadJob.of(held.claim, world.calls[held.claim.run.id].key_line) for held in group]
    world.lead.mark(jobs)
    _require_answered(world, [job for job in jobs if job.state in (JobState.CLAIMED, JobState.MARKING)])
    for job in sorted(jobs, key=lambda one: one.state is not JobState.STARTED):  # the others may fail
        _note_answer(world, worker, job)
    return True


def _require_answered(world: World, unanswered: Sequence[LeadJob]) -> None:
    names = ", ".join(world.name(world.calls[job.id]) for job in unanswered)
    if unanswered:
        raise BrokenPromiseError(f"the worker goes on asking whether it may begin {names}")


def _note_answer(world: World, worker: Worker, job: LeadJob) -> None:
    one, held = world.calls[job.id], worker.held[job.token]
    if job.state is JobState.STARTED:
        note_mark(world, held)
    elif job.state is JobState.KEYED:
        ask_for_key(world, worker, held)
    elif job.state is JobState.DAMAGED and not one.is_damaged:
        raise BrokenPromiseError(f"{world.name(one)} is not run, because of the damaged record of another")
    elif job.state in (JobState.LOST, JobState.CANCELLED, JobState.DAMAGED):
        del worker.held[held.claim.token]
        if job.state is JobState.CANCELLED:
            world.reaper.fail(held.claim, ToolCancelledError())


def finish_by_lead(world: World, pick: Random) -> bool:
    """Send the results of a worker as its lead does."""
    running = partial(  # more follows from the ends of the others: they are sent alone
        Worker.held_if,
        wanted=lambda held: held.has_begun and not (is_event(held.claim.run.call) or held.claim.was_pending),
    )
    worker = world.awake(pick, running)
    if worker is None:
        return False
    group = running(worker)[:MOST_RESULTS]
    jobs = [LeadJob.of(held.claim) for held in group]
    for job in jobs:
        job.wire = _result_of(worker, job.claim)
    again = world.lead.send(jobs)
    _require_stored(world, [job.id for job in again])
    for job in jobs:
        if job not in again:
            worker.leave_damaged(world.calls[job.id].is_damaged, worker.held.pop(job.token))
            require_released(world, world.calls[job.id])
    for cancelled in world.lead.cancelled:
        world.reaper.fail(cancelled.claim, ToolCancelledError())
    return True


def _result_of(worker: Worker, claim: Claim) -> bytes:
    return serializer.encode(claim.run.ok({"by": worker.name}, 0.0).to_wire())


def _require_stored(world: World, unsent: Sequence[str]) -> None:
    if unsent:
        names = ", ".join(world.name(world.calls[call_id]) for call_id in unsent)
        raise BrokenPromiseError(f"the worker goes on sending the results of {names}")
