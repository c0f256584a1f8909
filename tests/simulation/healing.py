"""The end of a walk: all faults are over, and every call must end."""

from dataclasses import replace
from random import Random

from goondan_tasks.ledger.record import Claim, Stored, Verdict
from tests.simulation.invariants import AT_END, check, require_alone
from tests.simulation.workers import claim, reserve, store_result
from tests.simulation.world import QUEUES, BrokenPromiseError, World

#: how long a world is healed
_ROUNDS = 80


def heal(world: World) -> None:
    """End all faults and let one worker go on: every call ends, and nothing is left.

    Raises:
        BrokenPromiseError: a call does not end, or something is left in an index or a queue.
    """
    world.is_healing = True
    for number in range(len(world.workers)):
        world.workers[number] = world.new_worker(number)
    world.swept.clear()
    for number in range(_ROUNDS):
        if number == _ROUNDS // 2:
            _require_only_pending(world)
        world.now += 4 if number < _ROUNDS // 2 else 5_000  # what is pending expires
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        _work_off(world)
        check(world)
        has_ended = all(one.result is not None or one.is_damaged for one in world.calls.values())
        has_messages = any(world.redis.llen(queue) for queue in QUEUES)
        if has_ended and not has_messages and not world.is_claimed:
            break
    else:
        open_calls = [
            f"{world.name(one)} is {world.redis.hgetall(world.ledger.keys.call(one.id))}"
            for one in world.calls.values()
            if one.result is None and not one.is_damaged
        ]
        raise BrokenPromiseError(f"never ends: {'; '.join(open_calls) or 'messages are left'}")
    for check_theme in AT_END:
        check_theme(world)


def _require_only_pending(world: World) -> None:
    """Raise BrokenPromiseError if a call still waits, although a worker has taken all that it could get."""
    waiting = [
        world.name(one)
        for one in world.calls.values()
        if one.result is None and not one.is_damaged and world.status(one) != b"pending"
    ]
    if waiting:
        raise BrokenPromiseError(f"a worker is there, and these still wait: {', '.join(waiting)}")


def _work_off(world: World) -> None:
    """Let one worker run all that it can get."""
    worker, pick = world.workers[0], Random(1)
    for _ in range(20):
        world.workers = [worker]
        took = reserve(world, pick)
        while worker.messages:
            claim(world, pick)
        for held in list(worker.held.values()):
            [answer] = world.ledger.start([held.claim.id_and_token]).run(world.redis)
            one = world.calls[held.claim.run.id]
            del worker.held[held.claim.token]
            if answer == Stored.YES:
                one.was_marked = True
                one.begun.append((worker.name, held.claim.run.attempt))
                require_alone(world, one, held)
                store_result(world, held.claim, held.claim.run.ok({"by": worker.name}, 0.0), pick)
            elif answer == Stored.CANCELLED:
                world.reaper.settle(_cancelled(held.claim))
        if not took:
            return


def _cancelled(claim: Claim) -> Claim:
    return replace(claim, verdict=Verdict.CANCELLED)
