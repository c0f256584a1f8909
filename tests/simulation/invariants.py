"""What must be true after every step, and once all faults are over."""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from broker_config.queues import call_queue, events_queue
from goondan_tasks.errors import AgentOutcomeUnknownError, ToolCancelledError, ToolOutcomeUnknownError
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from goondan_tasks.messages import ToolCallResult

if TYPE_CHECKING:
    from tests.simulation.world import KnownCall, World

#: keys that Celery and the walk itself keep without a lifetime
_LASTING = ("agent.", "sim:", "unacked", "_kombu")
#: indexes that must be empty once every call has ended
_EMPTY = ("due", "running:", "pending:", "approvals:", "mailbox:", "mailboxes:", "waiting:", "line:")


#: how long a world is healed
_ROUNDS = 80
_UNKNOWN = {ToolOutcomeUnknownError.code, AgentOutcomeUnknownError.code}


class BrokenPromiseError(AssertionError):
    """A promise of the ledger was broken."""


def check(world: "World") -> None:
    """Compare the results with those seen before.

    Raises:
        BrokenPromiseError: a final result has changed or is gone.
    """
    calls = [one for one in world.calls.values() if not one.is_damaged]
    with world.redis.pipeline(transaction=False) as pipe:
        for one in calls:
            pipe.hmget(world.ledger.keys.call(one.id), "status", "result")
        rows = pipe.execute()
    for one, (status, result) in zip(calls, rows, strict=True):
        final = result if status in (b"done", b"dead") else None
        if one.result is not None and final != one.result:
            raise BrokenPromiseError(
                f"the result of {world._name(one)} changed from {one.result!r} to {final!r}"
            )
        if final is not None and one.result is None:
            _check_result(world, one, ToolCallResult.from_json(final))
        one.result = final


def _check_result(world: "World", one: "KnownCall", result: ToolCallResult) -> None:
    """Raise BrokenPromiseError if a result does not fit what has happened to its call."""
    code = None if result.error is None else result.error.code
    if one.is_cancelled != (code == ToolCancelledError.code):
        raise BrokenPromiseError(f"{world._name(one)} ended with {code}; cancelled: {one.is_cancelled}")
    if code in _UNKNOWN and not one.was_marked:
        raise BrokenPromiseError(f"{world._name(one)} ended with {code} and was never marked")
    is_completed = result.output == {"completed": True}
    if one.is_completed and not one.is_cancelled and not is_completed:
        raise BrokenPromiseError(f"{world._name(one)} was completed and ended with {code}")


def check_lifetimes(world: "World") -> None:
    """Raise BrokenPromiseError if a key of the project has no lifetime."""
    names = [name.decode() for name in world.redis.scan_iter(count=1000)]
    ours = [name for name in names if not name.startswith(_LASTING)]
    with world.redis.pipeline(transaction=False) as pipe:
        for name in ours:
            pipe.ttl(name)
        lasting = [name for name, ttl in zip(ours, pipe.execute(), strict=True) if ttl == -1]
    if lasting:
        raise BrokenPromiseError(f"keys without a lifetime: {lasting}")


def heal(world: "World") -> None:
    """End all faults and let one worker go on: every call ends, and nothing is left.

    Raises:
        BrokenPromiseError: a call does not end, or something is left in an index or a queue.
    """
    queues = (call_queue("coder"), events_queue("coder"), events_queue("planner"))
    world.is_healing = True
    for number in range(len(world.workers)):
        world.workers[number] = world._new_worker(number)
    world.swept.clear()
    for number in range(_ROUNDS):
        if number == _ROUNDS // 2:
            _require_only_pending(world)
        world.now += 4 if number < _ROUNDS // 2 else 5_000  # what is pending expires
        world._show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        _work_off(world)
        check(world)
        if all(one.result is not None or one.is_damaged for one in world.calls.values()) and not any(
            world.redis.llen(queue) for queue in queues
        ):
            break
    else:
        open_calls = [
            f"{world._name(one)} is {world.redis.hgetall(world.ledger.keys.call(one.id))}"
            for one in world.calls.values()
            if one.result is None and not one.is_damaged
        ]
        raise BrokenPromiseError(f"never ends: {'; '.join(open_calls) or 'messages are left'}")
    _require_nothing_left(world)
    check_lifetimes(world)


def _require_only_pending(world: "World") -> None:
    """Raise BrokenPromiseError if a call still waits, although a worker has taken all that it could get."""
    waiting = [
        world._name(one)
        for one in world.calls.values()
        if one.result is None and not one.is_damaged and world._status(one) != b"pending"
    ]
    if waiting:
        raise BrokenPromiseError(f"a worker is there, and these still wait: {', '.join(waiting)}")


def _work_off(world: "World") -> None:
    """Let one worker run all that it can get."""
    worker, pick = world.workers[0], Random(1)
    for _ in range(20):
        world.workers = [worker]
        took = world.reserve(pick)
        while worker.messages:
            world.claim(pick)
        for held in list(worker.held.values()):
            [answer] = world.ledger.start([held.claim.id_and_token]).run(world.redis)
            one = world.calls[held.claim.run.id]
            del worker.held[held.claim.token]
            if answer == Stored.YES:
                one.was_marked = True
                one.begun.append((worker.name, held.claim.run.attempt))
                world._require_alone(one, held)
                world._finish(held.claim, held.claim.run.ok({"by": worker.name}, 0.0), pick)
            elif answer == Stored.CANCELLED:
                world.reaper.settle(_cancelled(held.claim))
        if not took:
            return


def _cancelled(claim: Claim) -> Claim:
    return replace(claim, verdict=Verdict.CANCELLED)


def _require_nothing_left(world: "World") -> None:
    prefix = world.ledger.keys.prefix
    lost = [one for one in world.calls.values() if one.is_damaged]
    # a sweep looks at them when they would have expired
    damaged = {name.encode() for one in lost for name in (one.id, one.submission.mailbox)}
    for name in world.redis.scan_iter(f"{prefix}*", count=1000):
        short = name.decode().removeprefix(prefix)
        if not short.startswith(_EMPTY):
            continue
        kind = world.redis.type(name)
        members = world.redis.zrange(name, 0, -1) if kind == b"zset" else world.redis.lrange(name, 0, -1)
        left = [member for member in members if member not in damaged]
        if left:
            raise BrokenPromiseError(f"{short} still holds {left}")
