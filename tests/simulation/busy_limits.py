"""Limits in situations that are rare by chance.

A call asks late for its permit, or for its key, or the permit that it asks for is that of a damaged record.
Another program writes times that lie days ahead.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from goondan_tasks.contract.events import is_event
from goondan_tasks.ledger.ledger import sweep_seconds
from tests.simulation.admission import MOST_TOKENS
from tests.simulation.faults import overwrite
from tests.simulation.limit_invariants import check_limits
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE, Deed
from tests.simulation.sweeps import sweep, wake
from tests.simulation.workers import (
    begin,
    claim,
    finish_many,
    mark,
    reserve_from,
    retry_run,
)
from tests.simulation.world import QUEUES, Worker, World
from workers.thinking.model_calls import COUNTED_SECONDS, SLOT_SECONDS

_DAYS_MS = 500_000_000
#: what a worker does with messages that it has
RUN: Sequence[Deed] = (claim, mark, begin) * 2


def ask_late(world: World, pick: Random) -> bool:
    """Let a worker ask for an earlier call when a later one with the same limit has begun in another."""
    # every second worker asks for each call by itself, after it has the message
    askers = [one for one in world.workers if int(one.process.removeprefix("process")) % 2]
    if not askers or any(one.is_frozen for one in world.workers):
        return False
    first = pick.choice(askers)
    second = pick.choice([one for one in world.workers if one is not first])
    if not submit_one(world, pick, "gate__solo"):
        return False
    reserve_from(world, first, QUEUES[:1], (5, 0), pick)
    if submit_one(world, pick, "gate__solo"):
        reserve_from(world, second, QUEUES[:1], (5, 0), pick)
        act(world, pick, second, RUN)
    act(world, pick, first, RUN)
    return True


def ask_after_end(world: World, pick: Random) -> bool:
    """Let a call ask for its key when another one with the same key has just ended, among others."""
    worker = world.awake(pick)
    if worker is None or not submit_one(world, pick, "once__plain"):
        return False
    reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    act(world, pick, worker, (*RUN, finish_many))
    if submit_one(world, pick, "once__plain"):
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
        act(world, pick, worker, RUN)
    return True


def ask_behind_damaged(world: World, pick: Random) -> bool:
    """Let a call ask for a permit when another waits, and the record of the one that has it is damaged."""
    worker = next((one for one in world.workers if not int(one.process.removeprefix("process")) % 2), None)
    if worker is None or any(one.is_frozen for one in world.workers):
        return False
    for number in range(2):
        if not submit_one(world, pick, "gate__solo"):
            return number > 0
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    holders = [world.calls[call_id] for call_id in _holders(world) if call_id in world.calls]
    for one in holders:
        if not one.is_damaged:
            overwrite(world, one)
    if pick.random() < 0.3:  # another program writes when dead holders were looked for last
        state = world.ledger.keys.limit("concurrency:gate__solo")
        world.redis.hset(state, "looked", str(world.milliseconds + _DAYS_MS))
        world.redis.expire(state, 100_000)
        world.note("the permits of the dead are to be looked for in days")
    world.count_starts()
    world.now += sweep_seconds(world.settings)
    world.show_time()
    if submit_one(world, pick, "gate__solo"):
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    return True


def die_uncounted(world: World, pick: Random) -> bool:
    """Let a worker die before it has counted the start of a call with a rate; the call runs again."""
    worker = world.awake(pick)
    if (
        worker is None
        or any(one.is_frozen for one in world.workers)
        or not submit_one(world, pick, "pace__slow")
    ):
        return False
    for actor in (worker, pick.choice([one for one in world.workers if one is not worker])):
        reserve_from(world, actor, QUEUES[:1], (5, 0), pick)
        act(world, pick, actor, RUN)
        if actor in world.workers:
            world.end(actor)
        world.ledger.end_leases(actor.process).run(world.redis)
        world.left.put_back_of(actor.process)
        sweep(world, pick)
        while world.swept:
            world.reaper.settle(world.swept.pop())
    return True


def wait_after_run(world: World, pick: Random) -> bool:
    """Let a call that has run wait for a permit before its next run, and an earlier one for its key."""
    asker = next((one for one in world.workers if int(one.process.removeprefix("process")) % 2), None)
    if asker is None or any(one.is_frozen for one in world.workers):
        return False
    other = pick.choice([one for one in world.workers if one is not asker])
    if not submit_one(world, pick, "gate__safe"):
        return False
    reserve_from(world, asker, QUEUES[:1], (5, 0), pick)
    if not submit_one(world, pick, "gate__safe"):
        return False
    reserve_from(world, other, QUEUES[:1], (5, 0), pick)
    act(world, pick, other, RUN)
    for held in other.held_if(lambda held: held.has_begun and not is_event(held.claim.run.call)):
        if world.calls[held.claim.run.id].terms.idempotent:
            retry_run(world, other, held, pick)
    for _ in range(2):
        if submit_one(world, pick, "gate__plain"):
            reserve_from(world, other, QUEUES[:1], (5, 0), pick)
            act(world, pick, other, RUN)
    world.count_starts()
    world.now += 6
    world.show_time()
    wake(world, pick)
    reserve_from(world, asker, QUEUES[:1], (5, 0), pick)
    act(world, pick, asker, (claim,) * 4)
    return True


def ask_serially(world: World, pick: Random) -> bool:
    """Let a worker that asks for each call by itself ask for some of which one runs at a time."""
    asker = next((one for one in world.workers if int(one.process.removeprefix("process")) % 2), None)
    if asker is None or any(one.is_frozen for one in world.workers):
        return False
    for _ in range(3):
        submit_one(world, pick, "gate__serial")
    reserve_from(world, asker, QUEUES[:1], (5, 0), pick)
    act(world, pick, asker, RUN)
    return True


def plan_look_too_late(world: World, _: Random) -> bool:
    """Let another program write that a wait queue is to be looked at in days, and a worker look then."""
    waiting = [name for name, state in world.limit_states.items() if state.line]
    if not waiting:
        return False
    world.redis.zadd(world.ledger.keys.limits, dict.fromkeys(waiting, world.milliseconds + _DAYS_MS))
    world.reaper.wake()
    world.note(f"{waiting} were to be looked at in days")
    return True


def start_in_days(world: World, _: Random) -> bool:
    """Let another program write starts to come among those that a rate counts."""
    rates = [limit for limit in world.limits.values() if limit.kind == "rate"]
    for limit in rates:
        starts = {f"start {number}": world.milliseconds + _DAYS_MS for number in range(limit.most)}
        world.redis.zadd(world.ledger.keys.holders(limit.name), starts)
        world.redis.expire(world.ledger.keys.holders(limit.name), 100_000)
        world.note(f"{limit.name} counts starts of the days to come")
    return bool(rates)


def use_up_tokens(world: World, pick: Random) -> bool:
    """Let requests to a model use its tokens, others wait for some of the minute, and a worker look then."""
    worker = world.awake(pick)
    if worker is None or any(one.is_frozen for one in world.workers):
        return False
    for number in range(3):
        if not submit_one(world, pick, "model__ask"):
            return number > 0
        if pick.random() < 0.7:
            reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
            act(world, pick, worker, RUN)
        _use_tokens(world, pick.choice([MOST_TOKENS, MOST_TOKENS // 2]))
        check_limits(world)
    for _ in range(pick.randrange(1, 4)):
        world.count_starts()
        world.now += pick.choice([10.3, 25.7, 44.9])  # no time of a call comes exactly then
        world.show_time()
        check_limits(world)
        if pick.random() < 0.5 and submit_one(world, pick, "model__ask"):  # behind those that wait
            reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
            act(world, pick, worker, (claim,) * 2)
            check_limits(world)
        wake(world, pick)
        check_limits(world)
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
        act(world, pick, worker, RUN)
    return True


def _use_tokens(world: World, tokens: int) -> None:
    """Count tokens, as a worker does after an answer of the model."""
    key, slot = world.ledger.keys.tokens("small"), int(world.now) // SLOT_SECONDS
    world.redis.hincrby(key, str(slot), tokens)
    world.redis.expire(key, 2 * COUNTED_SECONDS)
    world.used_tokens[slot] = world.used_tokens.get(slot, 0) + tokens
    world.note(f"the model has used {tokens} tokens")


def _holders(world: World) -> list[str]:
    holders: Any = world.redis.zrange(world.ledger.keys.holders("concurrency:gate__solo"), 0, -1)
    return [one.decode() for one in holders]


def submit_one(world: World, pick: Random, tool: str) -> bool:
    """Submit a call of a tool; return whether there was room for one."""
    one = world.new_call(pick, tools=(tool,))
    if one is None:
        return False
    world.ledger.submit_all([one.submission], "p1")
    world.tell("submitted", one)
    return True


def act(world: World, pick: Random, actor: Worker, deeds: Sequence[Deed]) -> None:
    """Let one worker do something while the others are frozen."""
    others = [one for one in world.workers if one is not actor and not one.is_frozen]
    for one in others:
        one.is_frozen = True
    for deed in deeds:
        deed(world, pick)
    for one in others:
        one.is_frozen = False


_SITUATIONS = (
    (ask_late, 1),
    (ask_after_end, 1),
    (ask_behind_damaged, 1),
    (die_uncounted, 1),
    (wait_after_run, 1),
    (ask_serially, 1),
    (use_up_tokens, 1),
    (plan_look_too_late, 0),
    (start_in_days, 0),
)
BUSY_LIMITS = Scene("busy-limits", table=(*TABLE, *_SITUATIONS), grave=SWARM.grave)
