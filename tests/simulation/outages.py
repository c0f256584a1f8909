"""Scripts that stop half-way: Redis refuses a write of them, or a whole script, or the script itself fails.

A step is taken while that happens. Its program asks again, with the same arguments, or ends there: a worker
or a sweeper dies, a producer submits again later, an operator does not learn what has become of his command.
What was written before loses no call, and lets none run twice. The rules of the model have no half steps, so
that the rest of the walk is not held against them.
"""

from collections.abc import Callable
from random import Random

from redis.exceptions import RedisError

from goondan_tasks.contract.events import is_event
from tests.simulation import producers, sweeps, workers
from tests.simulation.busy_limits import RUN, act, submit_one
from tests.simulation.invariants import check
from tests.simulation.rare import completable, complete_pending
from tests.simulation.refusals import Refusal, refusing
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE
from tests.simulation.workers import reserve_from, suspend_run
from tests.simulation.world import QUEUES, SAFE, BrokenPromiseError, Held, Worker, World

Deed = Callable[[World, Random], bool]
#: what a server says that takes no writes for now
_REFUSALS = (
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Errors writing to the AOF file: No space left on device",
)
_BUSY = "BUSY Valkey is busy running a script."
#: a fault of the script itself, which nobody sends again
FAULT = "ERR user_script:1: it cannot go on"
#: the number of the write that is refused, and how many scripts of the step run before
_PLACES, _BEFORE = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 10, 12), (0, 0, 0, 0, 1, 1, 2, 3)
_OPERATORS = (producers.cancel, producers.complete, producers.approve)
# recorded walks (``test_scenes.py``) choose among these by place: another length makes other walks of them
_WORKERS = (
    workers.claim,
    workers.mark,
    workers.begin,
    workers.finish,
    workers.outlast,
    workers.finish_many,
    workers.suspend,
    workers.report_progress,
    workers.renew,
    workers.give_back,
    sweeps.wake,
    sweeps.wake,
    workers.reconnect,
)
_OTHERS = (
    producers.submit,
    workers.reserve,
    sweeps.sweep,
    sweeps.wake,
    sweeps.settle,
    sweeps.put_back,
)
#: what is seldom possible is tried first
_SELDOM: tuple[Deed, ...] = (
    *_OPERATORS,
    workers.give_back,
    workers.outlast,
    sweeps.wake,
    sweeps.settle,
    sweeps.put_back,
)
DEEDS: tuple[Deed, ...] = (*_OPERATORS, *_WORKERS, *_OTHERS, *_OTHERS)


def refuse_writes(world: World, pick: Random) -> bool:
    """Take a step in which a script stops half-way; the first one of a few that is possible."""
    return any(
        take(world, pick, deed, _choose(pick)) for deed in (*pick.sample(_SELDOM, 3), *pick.sample(DEEDS, 5))
    )


def take(world: World, pick: Random, deed: Deed, refusal: Refusal) -> bool:
    """Take a step whose program ends where a script of it fails."""
    if deed is workers.reserve:  # its tags would name other messages (``Reservations.make``)
        refusal.is_sent_again = False
    has_ended, world.acting = False, None
    try:
        with refusing(refusal, world.stop_following):
            has_happened = deed(world, pick)
    except RedisError as error:
        if not refusal.met:
            raise
        has_ended = True
        world.note(f"{deed.__name__} ended with {error}"[:90])
    if not refusal.met:
        return has_happened
    _note_doubts(world, refusal)
    for script_call in refusal.met:
        world.note_end(script_call)
    if has_ended and deed in _WORKERS and world.acting is not None:
        world.end(world.acting)
    if has_ended and deed is producers.submit:
        world.unsure += [one for one in world.calls.values() if one.is_stored and one.id in refusal.words]
        if pick.random() < 0.5:
            world.submit_again()
    return True


def break_off_answer(world: World, pick: Random) -> bool:
    """Let a pending call be completed, and the script stop that stores its result and accepts its answer."""
    worker = world.awake(pick, completable)
    if worker is None:
        return False
    claim = complete_pending(world, pick, worker)
    if claim is None:
        return True
    world.swept.append(claim)
    refusal = Refusal(FAULT, pick.choice(_PLACES), lasts=False, is_sent_again=False, before=0)
    return take(world, pick, _settle_last, refusal)


def break_off_turn(world: World, pick: Random) -> bool:
    """Let a call wait until a rate admits it, and the script stop that finds that."""
    worker = world.awake(pick)
    if worker is None or any(one.is_frozen for one in world.workers):
        return False
    for _ in range(2):
        if not submit_one(world, pick, "pace__slow"):
            return False
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
        act(world, pick, worker, RUN)
    act(world, pick, worker, (workers.finish_many,))
    world.count_starts()
    world.now += 61
    world.show_time()
    refusal = Refusal(FAULT, pick.randrange(3, 12), lasts=False, is_sent_again=False, before=0)
    take(world, pick, sweeps.wake, refusal)
    return True


def break_off_give_back(world: World, pick: Random) -> bool:
    """Let messages be put back by a script that stops, because Redis takes no more writes."""
    worker = world.awake(pick)
    if worker is None or not producers.send_plain_message(world, pick):
        return False
    reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    world.count_starts()
    world.now += 1.5 * world.settings.lease_seconds
    world.show_time()
    text = pick.choice(_REFUSALS)
    refusal = Refusal(text, pick.choice((1, 2, 2, 3)), lasts=True, is_sent_again=False, before=1)
    take(world, pick, sweeps.put_back, refusal)
    return True


def break_off_end(world: World, pick: Random) -> bool:
    """Store the results of runs by a script at whose end Redis takes no more writes."""
    worker = world.awake(pick)
    if worker is None or any(one.is_frozen for one in world.workers) or not submit_one(world, pick, SAFE):
        return False
    reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    act(world, pick, worker, RUN)
    text = pick.choice(_REFUSALS)
    refusal = Refusal(text, pick.choice((3, 4, 4, 5, 6)), lasts=True, is_sent_again=False, before=0)
    take(world, pick, workers.finish_many, refusal)
    return True


def break_off_hold(world: World, pick: Random) -> bool:
    """Hold a call for an approval by a script that stops."""
    refusal = Refusal(FAULT, pick.choice(_PLACES), lasts=False, is_sent_again=False, before=0)
    return take(world, pick, _hold, refusal)


def _hold(world: World, pick: Random) -> bool:
    worker = world.awake(pick, _unbegun)
    return worker is not None and suspend_run(world, worker, pick.choice(_unbegun(worker)), pick)


def _unbegun(worker: Worker) -> list[Held]:
    return worker.held_if(lambda held: not held.is_marked and not is_event(held.claim.run.call))


def _settle_last(world: World, _: Random) -> bool:
    world.reaper.settle(world.swept.pop())
    return True


def _choose(pick: Random) -> Refusal:
    text = pick.choice((*_REFUSALS, _BUSY, FAULT, FAULT))
    place = 0 if text == _BUSY else pick.choice(_PLACES)
    is_fault = text == FAULT
    return Refusal(
        text, place, lasts=not is_fault, is_sent_again=not is_fault and pick.random() < 0.5,
        before=pick.choice(_BEFORE),
    )  # fmt: skip


def _note_doubts(world: World, refusal: Refusal) -> None:
    """Note which calls may be cancelled, completed, marked or accepted although nobody was told so.

    A script that fails where it counts the start of a run goes on without it: that run counts for no rate.
    """
    for one in world.calls.values():
        if one.id in refusal.words:
            one.is_doubtful = one.was_marked = True
            if refusal.text == FAULT:
                for limit in one.limits:
                    world.starts.pop(limit.name, None)


def check_outages(world: World) -> None:
    """Raise BrokenPromiseError if a call is pending that has not begun, and nobody can approve it."""
    check(world)
    if world.is_followed:
        return
    held = [one for one in world.calls.values() if not (one.begun or one.is_damaged)]
    with world.redis.pipeline(transaction=False) as pipe:
        for one in held:
            pipe.hmget(world.ledger.keys.call(one.id), "status", "approval")
        rows = pipe.execute()
    for one, (status, approval) in zip(held, rows, strict=True):
        if status == b"pending" and approval is None:
            raise BrokenPromiseError(f"{world.name(one)} waits for an approval that nobody can give")


OUTAGES = Scene(
    "outages",
    table=(
        *TABLE,
        (refuse_writes, 5),
        (break_off_answer, 0),
        (break_off_hold, 0),
        (break_off_turn, 0),
        (break_off_give_back, 1),
        (break_off_end, 1),
    ),
    check=check_outages,
    grave=SWARM.grave,
)
