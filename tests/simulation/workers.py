"""What workers do: reserve, claim, mark, run, store results, keep their leases.

Handlers do not run: the world notes when one would begin.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

from redis.exceptions import ResponseError

from broker_config import serializer
from goondan_tasks.contract.errors import GoondanError, ToolCancelledError, ToolError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import Pending
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from tests.simulation.invariants import require_alone, require_lease, require_startable
from tests.simulation.key_invariants import require_only_run
from tests.simulation.limit_invariants import require_no_permit, require_released, require_within_limits
from tests.simulation.sweeps import sweep
from tests.simulation.world import BrokenPromiseError, Held, KnownCall, Worker, World
from workers.job import Job


class WorkerDiedError(Exception):
    """A worker process has died in the middle of a step."""


def reserve(world: World, pick: Random) -> bool:
    """Reserve messages; those of our clients are claimed with them."""
    worker = world.awake(pick, world.queues_of)
    if worker is None:
        return False
    read = world.queues_of(worker)
    queues = list(read) if pick.random() < 0.7 else [pick.choice(read)]
    return reserve_from(world, worker, queues, (pick.choice([1, 1, 2, 5]), pick.choice([0, 0, 2])), pick)


def reserve_from(
    world: World, worker: Worker, queues: Sequence[str], counts: tuple[int, int], pick: Random
) -> bool:
    """Reserve so many messages, and so many more, from some queues; return whether there were any."""
    _acknowledge(world, worker)
    reservation = worker.reservations.make(queues, *counts)
    due = world.due()
    _, taken = reservation.script_call.run(world.redis)
    if not world.is_healing and pick.random() < 0.05:
        world.note(f"{worker.name} lost the answer to its reservation")
        return True
    for tag, number, message, answer in zip(*[iter(taken)] * 4, strict=True):
        queue = queues[number]
        if answer is None:
            worker.messages.append((tag.decode(), queue, message))
        elif not isinstance(answer, bytes):
            _take_claimed(world, worker, queue, tag.decode(), answer, due)
    return bool(taken)


def _acknowledge(world: World, worker: Worker) -> None:
    for tag, record in worker.acknowledged:
        world.in_flight.acknowledging(tag, record).run(world.redis)
    worker.acknowledged.clear()


def claim(world: World, pick: Random) -> bool:
    """Claim the call of a message that was not claimed when it was reserved."""
    worker = world.awake(pick, lambda one: one.messages)
    if worker is None:
        return False
    tag, _, message = worker.messages.pop(pick.randrange(len(worker.messages)))
    if not world.is_followed and world.is_without_record(message):
        worker.acknowledged.append((tag, ""))  # the script that was to accept the event was broken off
        return True
    one = world.call_of(message)
    request = world.request(worker, one, tag)
    if request is None:
        return True
    due = world.due()
    try:
        claim = _claim(world, worker, request, one, pick)
    except WorkerDiedError:
        world.end(worker)
        world.tell(f"was admitted in {worker.name}, which died", one)
        return True
    worker.acknowledged.append((tag, world.ledger.keys.call(one.id) if claim.verdict.is_recorded else ""))
    if world.is_healing:
        _acknowledge(world, worker)
    _take(world, worker, claim, due)
    return True


def mark(world: World, pick: Random) -> bool:
    """Mark some claims as started, in one trip."""
    worker = world.awake(pick, lambda one: one.held_if(lambda held: not held.is_marked))
    if worker is None:
        return False
    waiting = worker.held_if(lambda held: not held.is_marked)
    group = pick.sample(waiting, min(len(waiting), pick.choice([1, 1, 3])))
    pairs = [held.claim.id_and_token for held in group]
    keys = [world.calls[held.claim.run.id].key_line for held in group]
    answers = world.repeated(world.ledger.start(pairs, keys), pick)
    rows = list(zip(group, answers, strict=True))
    for held, answer in rows:
        if answer == Stored.YES:
            note_mark(world, held)
    for held, answer in rows:  # one of these may fail
        if answer == Stored.KEYED:
            ask_for_key(world, worker, held)
        elif answer != Stored.YES:
            del worker.held[held.claim.token]
        if answer == Stored.CANCELLED:
            world.reaper.fail(held.claim, ToolCancelledError())
    return True


def note_mark(world: World, held: Held) -> None:
    """Note that Redis has confirmed a mark, after checking whether it might."""
    one = world.calls[held.claim.run.id]
    require_startable(world, one)
    require_lease(world, one)
    held.note_mark(world.now)
    one.was_marked = True


def ask_for_key(world: World, worker: Worker, held: Held) -> None:
    """Ask whether a claimed call may run, because of its key; if not, do what the answer says."""
    one = world.calls[held.claim.run.id]
    try:
        claim = worker.limiter.admit_claimed(held.claim)
    except ResponseError:
        if not one.is_damaged:
            raise
        return
    if claim.verdict is Verdict.RUN:
        return
    del worker.held[held.claim.token]
    if claim.is_ours:
        world.reaper.settle(claim)
    else:
        world.tell(f"waits for {claim.about}", one)


def begin(world: World, pick: Random) -> bool:
    """Begin a handler whose mark is confirmed."""
    ready = partial(Worker.held_if, wanted=lambda held: held.is_marked and not held.has_begun)
    worker = world.awake(pick, ready)
    if worker is None:
        return False
    held = pick.choice(ready(worker))
    if not held.is_fresh(world.now):
        held.is_marked = False  # it has to be marked again
        return False
    one = world.calls[held.claim.run.id]
    held.has_begun = True
    world.tell(f"began in {worker.name}, attempt {held.claim.run.attempt}", one)
    if held.has_lost_mark:
        return True
    one.begun.append((worker.name, held.claim.run.attempt))
    require_alone(world, one, held)
    require_within_limits(world, one)
    require_only_run(world, one)
    if pick.random() < 0.5:  # else it counts when it ends, or takes a moment
        worker.count_start(held)
    return True


def finish(world: World, pick: Random) -> bool:
    """Store the results of runs that have ended."""
    running = partial(Worker.held_if, wanted=lambda held: held.has_begun)
    worker = world.awake(pick, running)
    if worker is None:
        return False
    held = pick.choice(running(worker))
    one, claim = world.calls[held.claim.run.id], held.claim
    if one.terms.idempotent and not one.is_event and pick.random() < 0.2:
        return retry_run(world, worker, held, pick)
    del worker.held[claim.token]
    result = ok_result(worker, claim, pick) if pick.random() < 0.7 else _error(world, claim)
    store_result(world, claim, result, pick)
    worker.leave_damaged(one.is_damaged, held)
    require_released(world, one)
    world.tell(f"ended in {worker.name}", one)
    return True


def outlast(world: World, pick: Random) -> bool:
    """Store the result of an event, such as that of its time limit, while its handler still runs."""
    running = partial(
        Worker.held_if,
        wanted=lambda held: held.has_begun and not held.has_result and is_event(held.claim.run.call),
    )
    worker = world.awake(pick, running)
    if worker is None:
        return False
    held = pick.choice(running(worker))
    result = _error(world, held.claim)
    script = world.ledger.finish(held.claim, result, world.reaper.answer(held.claim, result), still_runs=True)
    finished = world.repeated(script, pick, is_same=False)
    held.has_result = finished is Stored.YES
    if finished is Stored.CANCELLED:
        cancelled = world.reaper.cancelled(result)
        answer = world.reaper.answer(held.claim, cancelled)
        held.has_result = (
            world.ledger.finish(held.claim, cancelled, answer, still_runs=True).run(world.redis) is Stored.YES
        )
    if not held.has_result:  # the claim is lost, and its handler is told to stop
        del worker.held[held.claim.token]
    world.tell(f"has its result, and its handler runs on in {worker.name}", world.calls[held.claim.run.id])
    return True


def finish_many(world: World, pick: Random) -> bool:
    """Store the results of several calls in one script, as workers do whose ends cause no events."""
    running = partial(
        Worker.held_if,
        wanted=lambda held: held.has_begun and not (is_event(held.claim.run.call) or held.claim.was_pending),
    )
    worker = world.awake(pick, running)
    if worker is None:
        return False
    group = running(worker)
    rows = [
        world.ledger.ended(
            held.claim,
            serializer.encode(held.claim.run.ok({"by": worker.name}, 0.0).to_wire()),
            outcome="ok",
            kind="plain",
        )
        for held in group
    ]
    script_call = world.ledger.finish_many(rows)
    answers = world.repeated(script_call, pick, is_same=False)
    for held, answer in zip(group, answers, strict=True):
        del worker.held[held.claim.token]
        if answer == Stored.CANCELLED:
            world.reaper.fail(held.claim, ToolCancelledError())
        worker.leave_damaged(world.calls[held.claim.run.id].is_damaged, held)
        require_released(world, world.calls[held.claim.run.id])
    return True


def suspend(world: World, pick: Random) -> bool:
    """Make a run pending, or hold a claimed call for an approval."""
    able = partial(
        Worker.held_if,
        wanted=lambda held: held.has_begun == held.is_marked and not is_event(held.claim.run.call),
    )
    worker = world.awake(pick, able)
    if worker is None:
        return False
    return suspend_run(world, worker, pick.choice(able(worker)), pick)


def suspend_run(world: World, worker: Worker, held: Held, pick: Random) -> bool:
    """Make a run pending, or hold its call for an approval if it has not begun."""
    claim = held.claim
    pending = Pending("job-1", is_approval=not held.has_begun)
    result = claim.run.pending(pending, 0.0, expires_at=(world.now + 3_600) * 1000)
    one = world.calls[claim.run.id]
    del worker.held[claim.token]
    if one.is_damaged:  # its worker logs that the call is lost (ResultWriter)
        worker.leave_damaged(True, held)
        return False
    answer = world.ledger.suspend(claim, result).run(world.redis)
    if answer == -1:
        world.reaper.fail(claim, ToolCancelledError())
    elif isinstance(answer, bytes):
        store_result(world, claim, claim.run.ok({"completed": True}, 0.0), pick)
    world.tell("is pending", one)
    return True


def report_progress(world: World, pick: Random) -> bool:
    """Report the progress of a run, and emit output to the stream of its call, if it has one."""
    running = partial(Worker.held_if, wanted=lambda held: held.has_begun)
    worker = world.awake(pick, running)
    if worker is None:
        return False
    claim = pick.choice(running(worker)).claim
    world.ledger.progress(claim.run.id, claim.token, b'{"done":1}').run(world.redis)
    world.ledger.emit(claim.run.id, claim.token, claim.run.id, b'[{"type":"tool_output"}]').run(world.redis)
    return True


def renew(world: World, pick: Random) -> bool:
    """Renew all leases of a worker."""
    worker = world.awake(pick, lambda one: list(one.held.values()))
    if worker is not None:
        renew_all(world, worker)
    return worker is not None


def renew_all(world: World, worker: Worker) -> None:
    """Renew all leases of a worker, and drop the claims that are lost."""
    lost = world.ledger.renew([held.claim.id_and_token for held in worker.held.values()]).run(world.redis)
    for token, held in list(worker.held.items()):
        if held.claim.run.id in lost:
            world.forget_start(held)
            del worker.held[token]
        else:
            require_lease(world, world.calls[held.claim.run.id])
            held.renewed_at, held.has_lost_lease = max(held.renewed_at, world.now), False


def run_long(world: World, pick: Random) -> bool:
    """Let time pass while workers renew the leases of what they run, and sweepers look."""
    if not world.awake(pick, lambda one: one.held):
        return False
    world.count_starts()
    for _ in range(pick.choice([1, 3, 6])):
        world.now += 9
        world.show_time()
        for worker in world.workers:
            if worker.held and not worker.is_frozen:
                renew_all(world, worker)
        sweep(world, pick)
    return True


def give_back(world: World, pick: Random) -> bool:
    """Release a claim that has not begun."""
    unbegun = partial(Worker.held_if, wanted=lambda held: not held.has_begun)
    worker = world.awake(pick, unbegun)
    if worker is None:
        return False
    claim = pick.choice(unbegun(worker)).claim
    del worker.held[claim.token]
    message = world.reaper.message(claim.run.id, claim.run.call)
    release = world.ledger.release(claim, died=False, message=message, is_untouched=True)
    one = world.calls[claim.run.id]
    if not world.repeated(release, pick, is_same=False):
        world.reaper.fail(claim, ToolCancelledError())
    elif world.is_followed and _counts_as_running(world, one):
        raise BrokenPromiseError(f"{world.name(one)} is queued and counts as running")
    world.tell(f"given back by {worker.name}", one)
    return True


def _counts_as_running(world: World, one: KnownCall) -> bool:
    return world.redis.zscore(world.ledger.keys.running(one.call.agent_name), one.id) is not None


def reconnect(world: World, pick: Random) -> bool:
    """Send what a worker could not send while Redis was away for it."""
    worker = world.awake(pick, lambda one: one.writer.unsent)
    if worker is None:
        return False
    worker.writer.flush()
    return True


def _claim(world: World, worker: Worker, request: ClaimRequest, one: KnownCall, pick: Random) -> Claim:
    if one.is_event:
        script = world.ledger.claim_event(request, one.submission.message, is_handled_here=True)
        if one.is_damaged:
            return request.claim((Verdict.HELD.encode(), 0, 0, 0))
        claim: Claim = world.repeated(script, pick, is_same=False)
        return claim

    def make(request: ClaimRequest) -> Claim:
        if one.limits and world.is_faulty(0.05):
            worker.writer.is_dead = True
            raise WorkerDiedError
        made: Claim = world.repeated(
            world.ledger.claim(request, with_call=not one.is_stored), pick, is_same=False
        )
        return made

    try:
        return worker.limiter.claim(request, make, nullcontext())
    except ResponseError:
        if not one.is_damaged:
            raise
        return request.claim((Verdict.HELD.encode(), 0, 0, 0))


def _take_claimed(
    world: World, worker: Worker, queue: str, token: str, answer: Sequence[Any], due: Mapping[str, float]
) -> None:
    job = Job(queue, token, answer, asked_at=0.0, clock=lambda: world.now * 1000, worker=worker.name)
    if not job.verdict.is_granted:
        return
    try:
        claim = job.claim
    except (GoondanError, ValueError):  # nobody can read its call
        if not world.calls[job.id].is_foreign:
            raise
        return
    _take(world, worker, claim, due)


def _take(world: World, worker: Worker, claim: Claim, due: Mapping[str, float]) -> None:
    one = world.known(claim.run.id)
    if claim.verdict is Verdict.RUN:
        if world.is_followed and due.get(one.id, world.milliseconds) < world.milliseconds - 1:
            raise BrokenPromiseError(f"{world.name(one)} may run past its deadline")
        world.check_claimed(worker, one)
        held = worker.held[claim.token] = Held(claim, world.now)
        world.tell(f"claimed by {worker.name}, attempt {claim.run.attempt}", one)
        if one.key_line and world.is_faulty(0.3):  # it is not plain: the general path asks at once
            ask_for_key(world, worker, held)
        return
    if claim.is_ours:
        world.reaper.settle(claim)


def ok_result(worker: Worker, claim: Claim, pick: Random) -> ToolCallResult:
    """Return a result that no other call has of itself; its output may be in a file."""
    file = f".outputs/{claim.run.id}.json" if pick.random() < 0.2 else None
    return claim.run.ok({"by": worker.name, "of": claim.run.id}, 0.0, output_file=file)


def _error(world: World, claim: Claim) -> ToolCallResult:
    return world.reaper.failure(claim, ToolError("it failed"), 0.0)


def store_result(world: World, claim: Claim, result: ToolCallResult, pick: Random) -> None:
    script = world.ledger.finish(claim, result, world.reaper.answer(claim, result))
    finished = world.repeated(script, pick, is_same=False)
    if finished is Stored.CANCELLED:
        world.reaper.fail(claim, ToolCancelledError())


def retry_run(world: World, worker: Worker, held: Held, pick: Random) -> bool:
    """Let a run fail that is to be repeated after a pause, if there is time for another one."""
    claim, one = held.claim, world.calls[held.claim.run.id]
    pause = pick.choice([100, 5_000, 5_000, 5_000_000])
    del worker.held[claim.token]
    message = world.reaper.message(claim.run.id, claim.run.call)
    script = world.ledger.retry(claim, pause_ms=pause, begun_at=0.0, code="E_TOOL", message=message)
    if world.repeated(script, pick):
        one.retry_at, one.is_run_now = world.milliseconds + pause, False
        require_no_permit(world, one)
        world.tell("will run again", one)
    else:
        store_result(world, claim, _error(world, claim), pick)
    return True
