"""What is rare by chance: several things in a row that meet one call at the right time."""

from random import Random

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.events import is_event
from goondan_tasks.ledger.record import Claim, Outcome, Verdict
from tests.simulation.faults import overwrite
from tests.simulation.leads import finish_by_lead, mark_by_lead
from tests.simulation.sweeps import sweep
from tests.simulation.watchers import look_for_cancelled
from tests.simulation.workers import finish_many, mark, renew, suspend_run
from tests.simulation.world import LEASE, BrokenPromiseError, Held, Worker, World

_COMPLETED = Outcome({"completed": True})
#: what a worker does with several calls at once
_WITH_ALL = (mark, mark_by_lead, finish_many, finish_by_lead, renew, look_for_cancelled)


def cancel_held(world: World, _: Random) -> bool:
    """Cancel a call that a worker holds, and that has mostly not begun."""
    held = [one for worker in world.workers for one in worker.held.values()]
    held.sort(key=lambda one: one.is_marked + one.has_begun)
    calls = [world.calls[one.claim.run.id] for one in held]
    one = next((one for one in calls if not (one.is_cancelled or one.is_damaged)), None)
    if one is None:
        return False
    try:
        world.reaper.cancel(one.id, "someone")
    except GoondanError:
        return False
    one.is_cancelled = True
    world.tell("cancelled in its worker", one)
    return True


def complete_twice(world: World, pick: Random) -> bool:
    """Make a run pending; its first completer dies before it has stored the result, and another one comes."""
    worker = world.awake(pick, completable)
    if worker is None:
        return False
    claim = complete_pending(world, pick, worker)
    if claim is None:
        return True
    one = world.calls[claim.run.id]
    world.tell("completed by one who dies", one)
    try:
        world.completions.complete(one.id, _COMPLETED, "second")
    except GoondanError:
        return True
    raise BrokenPromiseError(f"{world.name(one)} was completed twice")


def complete_pending(world: World, pick: Random, worker: Worker) -> Claim | None:
    """Make a run pending and complete it; return the claim of the completer, who must store the result."""
    held = pick.choice(completable(worker))
    one = world.calls[held.claim.run.id]
    suspend_run(world, worker, held, pick)
    if world.status(one) != b"pending":
        return None
    try:
        claim = world.ledger.resolve(one.id, _COMPLETED, "first").run(world.ledger.redis)
    except GoondanError:
        return None
    one.is_completed = claim is not None and claim.verdict is Verdict.COMPLETED
    return claim


def damage_among_others(world: World, pick: Random) -> bool:
    """Overwrite the record of a call that a worker has beside others, and let it do something with all."""
    worker = world.awake(pick, lambda one: len(one.held) > 1)
    if worker is None:
        return False
    one = world.calls[pick.choice(list(worker.held.values())).claim.run.id]
    if one.is_damaged:
        return False
    overwrite(world, one)
    return any(deed(world, pick) for deed in pick.sample(_WITH_ALL, 3))


def lose_redis_twice(world: World, pick: Random) -> bool:
    """Let Redis be away beyond all leases, twice, and a worker mark what it holds between."""
    worker = world.awake(pick, lambda one: one.held_if(lambda held: not held.is_marked))
    if worker is None:
        return False
    world.count_starts()
    for _ in range(2):
        world.now += 2 * LEASE
        world.show_time()
        sweep(world, pick)
        mark(world, pick)
    world.note("Redis was away twice")
    return True


def completable(worker: Worker) -> list[Held]:
    """Return the runs of a worker that can become pending."""
    return worker.held_if(lambda held: held.has_begun and not is_event(held.claim.run.call))
