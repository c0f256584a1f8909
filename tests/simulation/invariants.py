"""What must be true after every step, and once all faults are over."""

from typing import Any, cast

from broker_config import serializer
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.events import mailbox_of
from goondan_tasks.contract.messages import ToolCallResult
from tests.simulation.conformance import differences
from tests.simulation.key_invariants import UNKNOWN, check_keys, key_of
from tests.simulation.limit_invariants import check_limits
from tests.simulation.world import KEEP, LEASE, THINKER, BrokenPromiseError, Held, KnownCall, World

#: keys that Celery and the walk itself keep without a lifetime
_LASTING = ("agent.", "sim:", "unacked", "_kombu")
#: indexes that must be empty once every call has ended
_EMPTY = (
    "due",
    "running:",
    "pending:",
    "approvals:",
    "scheduled:",
    "mailbox:",
    "mailboxes:",
    "waiting:",
    "line:",
)
#: those in which a script that was broken off leaves no call; readers drop what is left otherwise
_ALWAYS_EMPTY = tuple(one for one in _EMPTY if one != "mailboxes:")


def check(world: World) -> None:
    """Check everything that must be true after every step."""
    world.look()
    for check_theme in AFTER_STEP:
        check_theme(world)


def check_results(world: World) -> None:
    """Compare the results with those seen before.

    Raises:
        BrokenPromiseError: a final result has changed or is gone.
    """
    for one in world.calls.values():
        if one.is_damaged:
            continue
        final = world.seen.get(one.id, ("", b""))[1] or None
        if one.result is not None and final != one.result:
            raise BrokenPromiseError(
                f"the result of {world.name(one)} changed from {one.result!r} to {final!r}"
            )
        if final is not None and one.result is None:
            _check_result(world, one, ToolCallResult.from_json(final))
            world.ended.append(one)
        one.result = final


def _check_result(world: World, one: KnownCall, result: ToolCallResult) -> None:
    """Raise BrokenPromiseError if a result does not fit what has happened to its call."""
    code = None if result.error is None else result.error.code
    if one.is_cancelled != (code == ToolCancelledError.code) and not one.is_doubtful:
        raise BrokenPromiseError(f"{world.name(one)} ended with {code}; cancelled: {one.is_cancelled}")
    if code in UNKNOWN and not one.was_marked and key_of(one) is None:
        raise BrokenPromiseError(f"{world.name(one)} ended with {code} and was never marked")
    is_completed = result.output == {"completed": True}
    if one.is_completed and not one.is_cancelled and not is_completed:
        raise BrokenPromiseError(f"{world.name(one)} was completed and ended with {code}")


def check_conformance(world: World) -> None:
    """Raise BrokenPromiseError if a record is not what the rules of the model make of it."""
    conformance = world.conformance
    if not world.is_followed:
        return
    for call_id, (found, _) in world.seen.items():
        if call_id not in conformance.records:  # in a scene
            continue
        expected = conformance.expected(call_id)
        if found != expected:
            name = world.name(world.known(call_id))
            after = ", ".join(conformance.since[call_id]) or "nothing"
            reason = differences(found, expected)
            raise BrokenPromiseError(f"a record that no rule has made: {name} after {after}: {reason}")
    conformance.since.clear()


def check_lifetimes(world: World) -> None:
    """Raise BrokenPromiseError if a key of the project has no lifetime.

    A script that was broken off may leave lists without one, until a call is added.
    """
    keys = {name.decode(errors="backslashreplace"): name for name in world.redis.scan_iter(count=1000)}
    names = [name for name in keys if world.is_followed or name.startswith(world.ledger.keys.call(""))]
    ours = [name for name in names if not name.startswith(_LASTING)]
    with world.redis.pipeline(transaction=False) as pipe:
        for name in ours:
            pipe.ttl(keys[name])
        lasting = [name for name, ttl in zip(ours, pipe.execute(), strict=True) if ttl == -1]
    if lasting:
        raise BrokenPromiseError(f"keys without a lifetime: {lasting}")


def check_indexes(world: World) -> None:
    """Raise BrokenPromiseError if an index still holds a call."""
    prefix = world.ledger.keys.prefix
    empty = _EMPTY if world.is_followed else _ALWAYS_EMPTY
    lost = [one for one in world.calls.values() if one.is_damaged]
    # a sweep looks at them when they would have expired
    damaged = {name.encode() for one in lost for name in (one.id, one.submission.mailbox)}
    for name in world.redis.scan_iter(f"{prefix}*", count=1000):
        short = name.decode(errors="backslashreplace").removeprefix(prefix)
        if not short.startswith(empty):
            continue
        kind = world.redis.type(name)
        read = world.redis.zrange if kind == b"zset" else world.redis.lrange
        members = cast("list[bytes]", read(name, 0, -1))
        left = [one for one in members if one not in damaged and not one.startswith(b"@")]
        if short.startswith("mailbox:") and not world.is_followed:
            left = [one for one in left if world.redis.exists(world.ledger.keys.call(one.decode()))]
        if left:
            raise BrokenPromiseError(f"{short} still holds {left}")


def check_answers(world: World) -> None:
    """Raise BrokenPromiseError if a call has ended whose end causes an event, and there is none."""
    ended = [
        (call, answer)
        for call, answer in sorted(world.answers)
        if world.redis.type(call) == b"hash" and world.redis.hget(call, "status") in (b"done", b"dead")
    ]
    for call, answer in ended:
        if not world.redis.exists(answer):
            raise BrokenPromiseError(f"{call} has ended, and its answer was never accepted: {answer}")


def require_lease(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if the lease of a call was not renewed just now."""
    due = world.redis.zscore(world.ledger.keys.due, one.id)
    if due is None and not world.is_followed:  # a sweep makes it again (``shared_keys``)
        return
    if not one.is_damaged and (due is None or due < world.milliseconds + LEASE * 1000 - 1):
        raise BrokenPromiseError(f"the lease of {world.name(one)} was not renewed")


def require_startable(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if a call that was marked has ended, is cancelled, or has a damaged record."""
    if one.is_foreign:
        return
    if one.is_damaged:
        raise BrokenPromiseError(f"{world.name(one)} was marked as started although its record is damaged")
    if one.result is not None:
        raise BrokenPromiseError(f"{world.name(one)} was marked as started after its end")
    if one.is_cancelled:
        raise BrokenPromiseError(f"{world.name(one)} was marked as started after its cancel")


def require_alone(world: World, one: KnownCall, held: Held) -> None:
    """Raise BrokenPromiseError if a run that begins may not, beside the others or after them."""
    if one.is_foreign:
        return
    latest = round(world.latest * 1_000_000) / 1000  # Redis' clock, which may be set back after it was queued
    early = one.not_before - latest
    if early > 0:
        raise BrokenPromiseError(f"{world.name(one)} begins {early:.0f} ms early")
    if len(one.begun) > 1 and not one.terms.idempotent:
        raise BrokenPromiseError(f"{world.name(one)} is not idempotent and began in {one.begun}")
    for rival in _rivals(world, held):
        if rival is one:
            raise BrokenPromiseError(f"{world.name(one)} runs twice under valid leases")
        if one.is_damaged or rival.is_damaged:  # nothing says that it runs; the next renewal stops it
            continue
        if one.is_event and rival.is_event and mailbox_of(one.call) == mailbox_of(rival.call):
            raise BrokenPromiseError(f"{world.name(one)} and {world.name(rival)} of one mailbox run at once")
    if one.call.agent_name == THINKER and len(one.begun) == 1:
        _require_first(world, one)
    if held.claim.run.approved_by is not None and not one.is_damaged:
        _require_approved_arguments(world, one, held)


def _require_approved_arguments(world: World, one: KnownCall, held: Held) -> None:
    """Raise BrokenPromiseError if an approved call runs with other arguments than its record has."""
    wire = cast("bytes | None", world.redis.hget(world.ledger.keys.call(one.id), "call"))
    if wire is not None and serializer.decode(wire)["args"] != held.claim.run.call.args:
        raise BrokenPromiseError(f"{world.name(one)} begins with arguments that nobody has approved")


def _rivals(world: World, held: Held) -> list[KnownCall]:
    """Return the calls of the other runs, if Redis knows their leases and this one's."""
    if held.has_lost_lease:
        return []
    others = [other for worker in world.workers for other in worker.held.values() if other is not held]
    begun = [other for other in others if other.has_begun and other.is_exclusive(world.now)]
    calls = [world.calls[other.claim.run.id] for other in begun]
    return [one for one in calls if not one.is_foreign]


def _require_first(world: World, one: KnownCall) -> None:
    """Events of one mailbox begin in the order in which they were accepted.

    Of scheduled events, whose places are others, ``conformance`` knows the order.
    """
    if one.call.not_before is not None:
        return
    for other in world.calls.values():
        is_earlier = other.number < one.number and other.call.not_before is None
        is_before = other.is_event and is_earlier and not other.is_damaged
        if one.is_doubtful or other.is_doubtful:
            continue
        is_neighbour = is_before and mailbox_of(other.call) == mailbox_of(one.call)
        if is_neighbour and world.status(other) not in (None, b"done", b"dead"):
            raise BrokenPromiseError(f"{world.name(one)} began before {world.name(other)} had ended")


AFTER_STEP = (check_results, check_conformance, check_limits, check_keys)


def check_streams(world: World) -> None:
    """Raise BrokenPromiseError if the stream of a call that has ended was not made, or not ended."""
    for one in world.calls.values():
        is_known = not (one.is_damaged or one.is_foreign or one.is_lost or one.is_doubtful)
        if one.call.keep is None or not is_known or world.status(one) not in (b"done", b"dead"):
            continue
        key = world.ledger.keys.turn_stream(one.id)
        last = cast("list[Any]", world.redis.xrevrange(key, count=1))
        if not last or b"end" not in last[0][1][b"entries"]:
            raise BrokenPromiseError(f"the stream of {world.name(one)} has not ended: {last}")
        if not 0 < world.redis.ttl(key) <= KEEP:
            raise BrokenPromiseError(f"the stream of {world.name(one)} is kept too long")


AT_END = (check_indexes, check_lifetimes, check_answers, check_streams)
