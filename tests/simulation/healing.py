"""The end of a walk: all faults are over, and every call must end."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from goondan_tasks.ledger.record import Claim, Stored, Verdict
from tests.simulation.invariants import AT_END, check, require_alone
from tests.simulation.key_invariants import require_only_run, same_key
from tests.simulation.limit_invariants import require_within_limits
from tests.simulation.workers import ask_for_key, claim, ok_result, reserve, store_result
from tests.simulation.world import QUEUES, BrokenPromiseError, KnownCall, World

#: how long a world is healed
_ROUNDS = 200
#: how many rounds a call may wait, without and with a rate; those after the first are longer
_SOON_ROUNDS, _RATE_ROUNDS = 40, 100


def heal(world: World) -> None:
    """End all faults and let one worker go on: every call ends, and nothing is left.

    Raises:
        BrokenPromiseError: a call does not end, or something is left in an index or a queue.
    """
    world.is_healing = True
    for worker in list(world.workers):
        world.end(worker)
    world.swept.clear()
    world.submit_again()
    waited = 0
    for _ in range(_ROUNDS):
        waiting = _waiting(world)
        waited = waited + 1 if waiting else 0
        _require_patience(world, waiting, waited)
        # leases of the dead end, then rates and schedules have their times, then what is pending expires
        is_later = any(world.status(one) == b"scheduled" for one in world.calls.values())
        world.now += (4 if waited <= _SOON_ROUNDS else 20) if waiting else 210 if is_later else 5_000
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        work_off(world)
        check(world)
        damaged = {one.id for one in world.calls.values() if one.is_damaged}
        has_ended = not _open_calls(world)
        has_messages = any(world.redis.llen(queue) for queue in QUEUES)
        # what a script has left that was broken off, a sweep clears away
        is_clear = world.is_followed or not world.due().keys() - damaged
        if has_ended and not has_messages and not world.is_claimed and is_clear:
            break
    else:
        open_calls = [
            f"{world.name(one)} is {world.redis.hgetall(world.ledger.keys.call(one.id))}"
            for one in _open_calls(world)
        ]
        raise BrokenPromiseError(f"never ends: {'; '.join(open_calls) or 'messages are left'}")
    for check_theme in AT_END:
        check_theme(world)


def _open_calls(world: World) -> list[KnownCall]:
    """Return the calls that must end."""
    known = world.calls.values()
    return [one for one in known if one.result is None and not (one.is_damaged or one.is_lost)]


def _waiting(world: World) -> list[KnownCall]:
    """Return the open calls that are not pending or scheduled, and wait for no such call with their key.

    Behind a damaged event, the next one of its mailbox waits until a sweep looks at that.
    """
    stuck = [one for one in world.calls.values() if one.is_damaged or one.has_lost_message]
    closed = {one.submission.mailbox for one in stuck if one.is_event}
    calls = _open_calls(world)
    resting = {b"pending", b"scheduled"}
    pending = {one.id for one in calls if world.status(one) in resting or one.has_lost_message}
    return [
        one
        for one in calls
        if one.id not in pending
        and one.submission.mailbox not in closed
        and not any(other.id in pending for other, _ in same_key(world, one))
    ]


def _require_patience(world: World, waiting: Sequence[KnownCall], rounds: int) -> None:
    """Raise BrokenPromiseError if a call still waits, although a worker has taken all that it could get."""
    is_late = [one for one in waiting if rounds > (_RATE_ROUNDS if _has_rate(one) else _SOON_ROUNDS)]
    if is_late:
        names = ", ".join(world.name(one) for one in is_late)
        raise BrokenPromiseError(f"a worker is there, and these still wait: {names}")


def _has_rate(one: KnownCall) -> bool:
    return any(limit.kind == "rate" for limit in one.limits)


def work_off(world: World) -> None:
    """Let one worker run all that it can get."""
    worker, pick = world.workers[0], Random(1)
    for _ in range(20):
        world.workers = [worker]
        took = reserve(world, pick)
        while worker.messages:
            claim(world, pick)
        for held in list(worker.held.values()):
            one = world.calls[held.claim.run.id]
            [answer] = world.ledger.start([held.claim.id_and_token], [one.key_line]).run(world.redis)
            if answer == Stored.KEYED:
                ask_for_key(world, worker, held)
                continue
            del worker.held[held.claim.token]
            if answer == Stored.YES:
                one.was_marked = True
                one.begun.append((worker.name, held.claim.run.attempt))
                require_alone(world, one, held)
                require_within_limits(world, one)
                require_only_run(world, one)
                worker.limiter.begin(held.claim)
                store_result(world, held.claim, ok_result(worker, held.claim, pick), pick)
            elif answer == Stored.CANCELLED:
                world.reaper.settle(_cancelled(held.claim))
        if not took:
            return


def _cancelled(claim: Claim) -> Claim:
    return replace(claim, verdict=Verdict.CANCELLED)
