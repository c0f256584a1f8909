"""Limits in situations that are rare by chance: a call that asks late for its permit, or for its key."""

from collections.abc import Sequence
from random import Random

from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE, Deed
from tests.simulation.workers import begin, claim, finish_many, mark, reserve_from
from tests.simulation.world import QUEUES, Worker, World

_RUN: Sequence[Deed] = (claim, mark, begin) * 2


def ask_late(world: World, pick: Random) -> bool:
    """Let a worker ask for an earlier call when a later one with the same limit has begun in another."""
    # every second worker asks for each call by itself, after it has the message
    askers = [one for one in world.workers if int(one.process.removeprefix("process")) % 2]
    if not askers or any(one.is_frozen for one in world.workers):
        return False
    first = pick.choice(askers)
    second = pick.choice([one for one in world.workers if one is not first])
    if not _submit(world, pick, "gate__solo"):
        return False
    reserve_from(world, first, QUEUES[:1], (5, 0), pick)
    if _submit(world, pick, "gate__solo"):
        reserve_from(world, second, QUEUES[:1], (5, 0), pick)
        _act(world, pick, second, _RUN)
    _act(world, pick, first, _RUN)
    return True


def ask_after_end(world: World, pick: Random) -> bool:
    """Let a call ask for its key when another one with the same key has just ended, among others."""
    worker = world.awake(pick)
    if worker is None or not _submit(world, pick, "once__plain"):
        return False
    reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
    _act(world, pick, worker, (*_RUN, finish_many))
    if _submit(world, pick, "once__plain"):
        reserve_from(world, worker, QUEUES[:1], (5, 0), pick)
        _act(world, pick, worker, _RUN)
    return True


def _submit(world: World, pick: Random, tool: str) -> bool:
    one = world.new_call(pick, tools=(tool,))
    if one is None:
        return False
    world.ledger.submit_all([one.submission], "p1")
    world.tell("submitted", one)
    return True


def _act(world: World, pick: Random, actor: Worker, deeds: Sequence[Deed]) -> None:
    """Let one worker do something while the others are frozen."""
    others = [one for one in world.workers if one is not actor and not one.is_frozen]
    for one in others:
        one.is_frozen = True
    for deed in deeds:
        deed(world, pick)
    for one in others:
        one.is_frozen = False


BUSY_LIMITS = Scene("busy-limits", table=(*TABLE, (ask_late, 1), (ask_after_end, 1)), grave=SWARM.grave)
