"""Scripts that stop half-way: Redis refuses a write of them, or a whole script, or the script itself fails.

A step is taken while that happens. Its program asks again, with the same arguments, or ends there: a worker
or a sweeper dies, a producer submits again later, an operator does not learn what has become of his command.
What was written before loses no call, and lets none run twice. The rules of the model have no half steps, so
that the rest of the walk is not held against them.
"""

from collections.abc import Callable
from random import Random

from redis.exceptions import RedisError

from tests.simulation import producers, sweeps, workers
from tests.simulation.refusals import Refusal, refusing
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE
from tests.simulation.world import World

Deed = Callable[[World, Random], bool]
#: what a server says that takes no writes for now
_REFUSALS = (
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Errors writing to the AOF file: No space left on device",
)
_BUSY = "BUSY Valkey is busy running a script."
#: a fault of the script itself, which nobody sends again
_FAULT = "ERR user_script:1: it cannot go on"
#: the number of the write that is refused, and how many scripts of the step run before
_PLACES, _BEFORE = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 10, 12), (0, 0, 0, 0, 1, 1, 2, 3)
_OPERATORS = (producers.cancel, producers.complete, producers.approve)
_WORKERS = (
    workers.claim,
    workers.mark,
    workers.begin,
    workers.finish,
    workers.outlast,
    workers.finish_many,
    workers.suspend,
    workers.go_on_after_pause,
    workers.report_progress,
    workers.renew,
    workers.give_back,
    workers.look,
    workers.fire_alarms,
    workers.reconnect,
)
_OTHERS = (producers.submit, workers.reserve, sweeps.sweep, sweeps.settle, sweeps.put_back)
#: what is seldom possible is tried first
_SELDOM: tuple[Deed, ...] = (
    *_OPERATORS,
    workers.give_back,
    workers.go_on_after_pause,
    workers.outlast,
    workers.look,
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
    has_ended = False
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
    if has_ended and deed in _WORKERS and world.acting is not None:
        world.end(world.acting)
    if has_ended and deed is producers.submit:
        world.unsure += [one for one in world.calls.values() if one.is_stored and one.id in refusal.words]
        if pick.random() < 0.5:
            world.submit_again()
    return True


def _choose(pick: Random) -> Refusal:
    text = pick.choice((*_REFUSALS, _BUSY, _FAULT, _FAULT))
    place = 0 if text == _BUSY else pick.choice(_PLACES)
    is_fault = text == _FAULT
    return Refusal(
        text, place, lasts=not is_fault, is_sent_again=not is_fault and pick.random() < 0.5,
        before=pick.choice(_BEFORE),
    )  # fmt: skip


def _note_doubts(world: World, refusal: Refusal) -> None:
    """Note which calls may be cancelled, completed, marked or accepted although nobody was told so."""
    for one in world.calls.values():
        if one.id in refusal.words:
            one.is_doubtful = one.was_marked = True


OUTAGES = Scene("outages", table=(*TABLE, (refuse_writes, 5)), grave=SWARM.grave)
