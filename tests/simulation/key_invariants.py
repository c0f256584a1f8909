"""What must be true of calls with the same idempotencyKey: one runs, and the others share its result."""

from typing import cast

from goondan_tasks.contract.errors import (
    AgentOutcomeUnknownError,
    ToolCallConflictError,
    ToolOutcomeUnknownError,
)
from goondan_tasks.contract.messages import ToolCallResult
from tests.simulation.admission import Limit
from tests.simulation.world import BrokenPromiseError, KnownCall, World

UNKNOWN = {ToolOutcomeUnknownError.code, AgentOutcomeUnknownError.code}


def key_of(one: KnownCall) -> Limit | None:
    """Return the limit of a call's key, if it has one."""
    return next((limit for limit in one.limits if limit.kind == "key"), None)


def same_key(world: World, one: KnownCall) -> list[tuple[KnownCall, Limit]]:
    """Return the other calls with the key of a call, each with its own limit of it."""
    key = key_of(one)
    found = (
        [] if key is None else [(other, key_of(other)) for other in world.calls.values() if other is not one]
    )
    return [(other, its) for other, its in found if key and its and its.name == key.name]


def require_only_run(world: World, one: KnownCall) -> None:
    """Raise BrokenPromiseError if a run begins although another one with its key runs, or is shared."""
    for other, _ in same_key(world, one):
        if not other.begun or other.is_foreign or one.is_foreign:
            continue
        result = other.result
        if result is None and world.status(other) in (b"done", b"dead"):
            result = cast("bytes | None", world.redis.hget(world.ledger.keys.call(other.id), "result"))
        if result is None:  # if its record is damaged, nobody knows
            raise BrokenPromiseError(f"{world.name(one)} began before {world.name(other)} had ended")
        if is_shared(ToolCallResult.from_json(result)):
            raise BrokenPromiseError(f"{world.name(one)} began although {world.name(other)} has its result")


def is_shared(result: ToolCallResult) -> bool:
    """Whether calls with the same key share a result: it is ok, or nobody knows the outcome."""
    return result.error is None or result.error.code in UNKNOWN


def check_keys(world: World) -> None:
    """Raise BrokenPromiseError if a call has ended without a run, and its result is no other call's."""
    ended, world.ended = world.ended, []
    for one in ended:
        key = key_of(one)
        if key is None or one.result is None:
            continue
        result = ToolCallResult.from_json(one.result)
        code = None if result.error is None else result.error.code
        others = same_key(world, one)
        is_edited = any(its.is_edited for its in (one, *(other for other, _ in others)))
        are_same = not is_edited and all(its.digest == key.digest for _, its in others)
        if code == ToolCallConflictError.code and are_same:
            raise BrokenPromiseError(f"{world.name(one)} is in conflict with calls that are the same")
        if code == "E_TOOL" and not one.was_marked:
            raise BrokenPromiseError(f"{world.name(one)} has the error of another call")
        if not one.was_marked and not one.is_completed and is_shared(result):
            equal = [other for other, its in others if its.digest == key.digest]
            if not any(other.is_foreign or _is_same(result, other) for other in equal):
                raise BrokenPromiseError(
                    f"{world.name(one)} has not run, and shares {result.output} with nobody"
                )


def _is_same(result: ToolCallResult, other: KnownCall) -> bool:
    """Whether a call has ended with the same outcome."""
    if other.result is None:
        return False
    its = ToolCallResult.from_json(other.result)
    outcomes = [(one.status, one.output, one.error, one.meta.output_file) for one in (result, its)]
    return outcomes[0] == outcomes[1]
