"""What must be true of limits: after every step, when a handler begins, and at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from goondan_tasks.ledger.ledger import sweep_seconds
from tests.simulation.admission import Limit
from tests.simulation.refusals import was_refused
from tests.simulation.world import BrokenPromiseError, KnownCall, World
from workers.thinking.model_calls import SLOT_SECONDS

#: the status, the time of submission and the deadline (ms) of each call with limits
Records = dict[str, tuple[bytes | None, float, float]]


@dataclass(frozen=True, slots=True)
class LimitState:
    """The calls that hold a permit of a limit, and those that wait for it, each with its score.

    For tokens, the first are those that have passed.
    """

    holders: dict[str, float]
    line: dict[str, float]
    #: when its wait queue must be checked (ms), if it is in the index
    look_at: float | None
    #: whether the tokens of the last minute reach the limit
    is_used_up: bool = False


def check_limits(world: World) -> None:
    """Compare the permits and wait queues with those seen before.

    Raises:
        BrokenPromiseError: a limit is exceeded, a call overtook another or waits although it has ended or
            was admitted, or a queue is not looked after.
    """
    if not world.limits:
        return
    before = world.limit_states
    records = read_limits(world)
    for name, state in world.limit_states.items():
        limit = world.limits[name]
        if limit.kind == "seats" and len(state.holders) > limit.most:
            raise BrokenPromiseError(f"{name} has the holders {_names(world, state.holders)}")
        if name in before:
            _require_order(world, name, before, records)
            passed = state.holders.keys() - before[name].holders.keys()
            if passed and before[name].is_used_up and state.is_used_up:
                raise BrokenPromiseError(f"{_names(world, passed)} passes {name}, whose tokens are used up")
        if world.is_followed:  # a look mends what a script has left that was broken off
            _require_waiting(world, name, records)
        latest = 1000 * (world.latest + sweep_seconds(world.settings)) + 1
        if state.line and (state.look_at is None or state.look_at > latest):
            raise BrokenPromiseError(f"the wait queue of {name} is looked after at {state.look_at}")


def read_limits(world: World) -> Records:
    """Read the states of all limits, and the records of their calls, in one trip."""
    keys, known = (
        world.ledger.keys,
        [one for one in world.calls.values() if one.limits and not one.is_damaged],
    )
    with world.redis.pipeline(transaction=False) as opened:
        pipe: Any = opened
        for name in world.limits:
            pipe.execute_command("ZRANGE", keys.holders(name), 0, -1, "WITHSCORES")
            pipe.execute_command("ZRANGE", keys.wait_queue(name), 0, -1, "WITHSCORES")
            pipe.execute_command("ZSCORE", keys.limits, name)
        for one in known:
            fields = ("status", "queuedAt", "deadline", "permits", "waiting")
            pipe.execute_command("HMGET", keys.call(one.id), *fields)
        rows = pipe.execute()
    size = 3 * len(world.limits)
    parts = zip(world.limits, rows[:size:3], rows[1:size:3], rows[2:size:3], strict=True)
    states = {
        name: LimitState(_scores(holders), _scores(line), None if look is None else float(look))
        for name, holders, line, look in parts
    }
    records: Records = {}
    for one, (status, queued, deadline, permits, waits) in zip(known, rows[size:], strict=True):
        records[one.id] = (status, float(queued or 0), float(deadline or 0))
        for limit in one.limits:
            if limit.kind == "tokens" and limit.line.encode() in (permits or b"") and not waits:
                states[limit.name].holders[one.id] = 0.0
    for name, limit in world.limits.items():
        if limit.kind == "tokens":
            states[name] = replace(states[name], is_used_up=_is_used_up(world, limit))
    world.limit_states = states
    return records


def _is_used_up(world: World, limit: Limit) -> bool:
    slot = int(world.now) // SLOT_SECONDS
    counted = range(slot - limit.period // (1000 * SLOT_SECONDS) + 1, slot + 1)
    return sum(world.used_tokens.get(one, 0) for one in counted) >= limit.most


def _require_waiting(world: World, name: str, records: Records) -> None:
    """Raise BrokenPromiseError if a call in a wait queue has ended, or holds what it waits for."""
    state = world.limit_states[name]
    ended = [one for one in state.line if one in records and records[one][0] in (b"done", b"dead")]
    if ended:
        raise BrokenPromiseError(f"{_names(world, ended)} has ended and waits for {name}")
    admitted = state.line.keys() & state.holders.keys()
    if admitted:
        raise BrokenPromiseError(f"{_names(world, admitted)} has a permit of {name} and waits for one")


def _scores(rows: Sequence[Any]) -> dict[str, float]:
    """Read the members and scores of an index, as a list of pairs or flat."""
    return {member.decode(): float(score) for member, score in rows}


def _require_order(world: World, name: str, before: Mapping[str, LimitState], records: Records) -> None:
    """Calls get permits in the order of their submission, as far as they have been waiting."""
    now = world.limit_states[name]
    for winner in now.holders.keys() - before[name].holders.keys():
        if winner not in records:  # a start that counts, or a damaged call
            continue
        # a script that stopped half-way may have admitted both, and taken neither out of the wait queue
        for loser in (now.line.keys() & before[name].line.keys()) - now.holders.keys():
            status, queued_at, deadline = records.get(loser, (None, 0.0, 0.0))
            is_waiting = status == b"queued" and deadline > world.milliseconds
            if (
                is_waiting
                and queued_at < records[winner][1]
                and not _may_have_left(world, name, before, loser)
            ):
                raise BrokenPromiseError(f"{_names(world, [winner, loser])}: the first overtook the other")


def _may_have_left(world: World, name: str, before: Mapping[str, LimitState], waiting: str) -> bool:
    """Return whether a call may have waited for another limit meanwhile, which was then released."""
    others = (limit.name for limit in world.calls[waiting].limits if limit.name != name)
    return any(
        before[other].holders.keys() - world.limit_states[other].holders.keys()
        for other in others
        if other in before
    )


def require_within_limits(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if a run that begins exceeds a limit, unless its record is damaged."""
    if one.is_foreign or one.is_damaged:
        return
    for limit in one.limits:
        if limit.kind == "seats":
            running = _running(world, limit.name)
            if len(running) > limit.most:
                raise BrokenPromiseError(f"{_names(world, running)} run at once, in spite of {limit.name}")
        elif limit.kind == "rate":
            times = world.starts.setdefault(limit.name, [])
            new = (int(world.milliseconds), one.id)
            times.append(new)
            times.sort()
            # Redis' clock may be set back between the permit and the start
            set_back = int(1000 * (world.latest - world.now))
            for first, beyond in zip(times, times[limit.most :], strict=False):
                passed = beyond[0] - first[0] + set_back
                if new in (first, beyond) and passed < limit.period:
                    starts = f"{limit.most + 1} starts in {passed} ms"
                    raise BrokenPromiseError(f"{world.name(one)} exceeds {limit.name}: {starts}")


def require_no_permit(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if a call that pauses between two runs keeps others from running."""
    read_limits(world)
    for limit in one.limits:
        if limit.kind == "seats" and one.id in world.limit_states[limit.name].holders:
            raise BrokenPromiseError(f"{world.name(one)} pauses and has a permit of {limit.name}")


def _running(world: World, name: str) -> list[str]:
    """Return the calls of a limit that run under valid leases."""
    return [
        held.claim.run.id
        for worker in world.workers
        for held in worker.held.values()
        if held.has_begun
        and not held.is_overdue
        and held.is_exclusive(world.now)
        and not world.calls[held.claim.run.id].is_damaged
        and any(limit.name == name for limit in world.calls[held.claim.run.id].limits)
    ]


def require_released(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if a run that has ended keeps a permit, or calls wait although one is free."""
    records = read_limits(world)
    has_ended = one.id in records and records[one.id][0] in (b"done", b"dead")
    if was_refused() or (one.result is not None and not world.is_followed):
        has_ended = False  # a look takes what a script that was broken off has left
    for limit in one.limits:
        state = world.limit_states[limit.name]
        if limit.kind == "seats" and has_ended and one.id in state.holders:
            raise BrokenPromiseError(f"{world.name(one)} has ended and still has its permit of {limit.name}")
        is_looked_at = (
            state.look_at is not None and state.look_at <= world.milliseconds + 1
        )  # at once: a batch is full
        if limit.kind == "seats" and state.line and len(state.holders) < limit.most and not is_looked_at:
            waiting = _names(world, state.line)
            raise BrokenPromiseError(f"{world.name(one)} has left {limit.name}, and {waiting} wait")
        if limit.kind == "key" and has_ended and state.line and not is_looked_at:
            owner = world.redis.hget(world.ledger.keys.limit(limit.name), "owner")
            if owner == one.id.encode():
                waiting = _names(world, state.line)
                raise BrokenPromiseError(f"{world.name(one)} has ended, and {waiting} wait for its key")


def _names(world: World, ids: Any) -> str:
    known = world.calls
    return ", ".join(world.name(known[call_id]) if call_id in known else call_id for call_id in ids)
