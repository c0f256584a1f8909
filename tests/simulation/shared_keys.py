"""Keys that many calls share: another program deletes one, or writes something else there.

Steps are taken while the key is overwritten: programs that cannot go on without it end, as in ``outages``.
Then an operator deletes it, and workers publish what they publish from time to time. This may be lost, and
nothing else:

- of a queue, its messages: the calls that waited there end at their deadlines, and so do those behind them
- of ``calls``, ``running``, ``pending``, ``approvals`` and ``mailboxes``, their entries: they are only lists
- of ``due`` and ``swept``, nothing: sweeps make them again

Or it writes there that something happens in days: then it happens when it would have.
"""

from random import Random
from typing import cast

from redis.exceptions import ResponseError

from broker_config.queues import IN_FLIGHT_INDEX
from broker_config.refusals import is_script_fault
from tests.simulation.outages import DEEDS, Deed, take
from tests.simulation.rare import completable, complete_pending
from tests.simulation.refusals import Failure
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE
from tests.simulation.world import AGENT, QUEUES, THINKER, KnownCall, World

_LISTS = ("calls:", "running:", "pending:", "approvals:", "mailboxes:")


def damage_key(world: World, pick: Random) -> bool:
    """Let another program delete a shared key, or overwrite it for a few steps; once in a walk."""
    prefix = world.ledger.keys.prefix
    lists = [f"{prefix}{name}{agent}" for name in _LISTS for agent in (AGENT, THINKER)]
    own = [world.ledger.keys.due] * 4 + [world.ledger.keys.swept, world.ledger.keys.agents]
    found = [key for key in (*own, *QUEUES, *lists) if world.redis.exists(key)]
    if not (world.is_followed and found and world.calls):
        return False
    key = pick.choice(found)
    world.stop_following()
    world.note(f"{key} is damaged")
    if key in QUEUES:
        _note_lost(world, cast("list[bytes]", world.redis.lrange(key, 0, -1)))
    world.redis.delete(key)
    if pick.random() < 0.6:
        if key == world.ledger.keys.swept:
            world.redis.hset(key, "overwritten", "1")
        else:
            world.redis.set(key, "overwritten", ex=100_000)
        for deed in pick.sample(DEEDS, 6):
            _take(world, pick, deed)
        _mend(world, key)
    world.publish_agents()
    return True


def answer_without_deadlines(world: World, pick: Random) -> bool:
    """Let a pending call be completed, and store its result when ``due`` has been overwritten."""
    worker = world.awake(pick, completable)
    if worker is None or not world.is_followed:
        return False
    claim = complete_pending(world, pick, worker)
    if claim is None:
        return True
    one = world.calls[claim.run.id]
    world.stop_following()
    due = world.ledger.keys.due
    world.note(f"{due} is damaged as {world.name(one)} is completed")
    world.redis.set(due, "overwritten", ex=100_000)
    world.reaper.settle(claim)
    _mend(world, due)
    return True


def be_due_in_days(world: World, pick: Random) -> bool:
    """Let another program write that open calls are due in days, and messages reserved in days."""
    due, days = world.ledger.keys.due, 86_400 * 30
    calls = [one.id for one in world.calls.values() if one.result is None and _is_listed(world, one)]
    if not (calls and world.is_followed):  # the lists by which sweeps find them are sound
        return False
    world.stop_following()
    world.far.update(calls)
    world.redis.zadd(due, dict.fromkeys(calls, world.milliseconds + 1000 * days), xx=True)
    tags = cast("list[bytes]", world.redis.zrange(IN_FLIGHT_INDEX, 0, -1))
    if tags:
        world.redis.zadd(IN_FLIGHT_INDEX, dict.fromkeys(tags, world.now + days), xx=True)
    world.note(f"{', '.join(world.name(world.calls[one]) for one in calls)}: due in days")
    if pick.random() < 0.5:
        world.end(pick.choice(world.workers))
    return True


def _is_listed(world: World, one: KnownCall) -> bool:
    """Whether sweeps find a call without ``due``; they do not find one that another sweep has in hand."""
    keys, agent = world.ledger.keys, one.call.agent_name
    lists = (keys.running(agent), keys.pending(agent), keys.scheduled(agent))
    return any(world.redis.zscore(name, one.id) is not None for name in lists)


def _mend(world: World, key: str) -> None:
    """Delete an overwritten key as an operator does, but for those that a sweep must make again."""
    if key == world.ledger.keys.due:
        world.swept += world.ledger.sweep("sweeper").run(world.redis)
    elif key != world.ledger.keys.swept and world.redis.type(key) == b"string":
        world.redis.delete(key)


def _note_lost(world: World, messages: list[bytes]) -> None:
    """Note the calls that lose their messages; one of plain Celery that has no record yet is gone."""
    for one in [world.call_of(message) for message in messages if not world.is_without_record(message)]:
        one.has_lost_message = True
        if not (one.is_stored or one.is_damaged or world.redis.exists(world.ledger.keys.call(one.id))):
            world.calls.pop(one.id, None)


def _take(world: World, pick: Random, deed: Deed) -> None:
    try:
        take(world, pick, deed, Failure())
    except ResponseError as error:  # the walk itself has looked at the key
        if not is_script_fault(error):
            raise


SHARED_KEYS = Scene(
    "shared-keys",
    table=(*TABLE, (damage_key, 3), (answer_without_deadlines, 0), (be_due_in_days, 0)),
    grave=SWARM.grave,
)
