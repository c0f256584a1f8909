"""Records that another version or program has written: a newer one, without some fields, or with garbage.

Nothing is promised about the call of such a record but that it harms no other. A script about this call alone
may fail; one about several, such as a reservation or a sweep, never does. At the end these records are
overwritten, as they would have expired.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from random import Random
from typing import Any, cast

from redis.exceptions import RedisError

from broker_config.scripts import ScriptCall
from goondan_tasks.contract.errors import GoondanError
from tests.simulation import workers
from tests.simulation.faults import overwrite
from tests.simulation.healing import heal
from tests.simulation.limit_invariants import read_limits
from tests.simulation.refusals import Exchange, Failure, refusing
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.steps import TABLE, Deed
from tests.simulation.world import BrokenPromiseError, KnownCall, World

#: of the same type as what belongs there, and of another
_GARBAGE = (
    "", "garbage", "-1", "0", "1e400", "nan", "inf", "12.5", "99999999999999999999", "null", "[]", "{}",
    '{"v":1}', "queued", "running", "pending", "done", "dead", "seats x", "key 1 0 - nobody", b"\xff\xfe\x00",
    "1 2 3\n4",
)  # fmt: skip
#: fields that a record may have although it has them not now
_FIELDS = (
    "status", "call", "deadline", "token", "queuedAt", "attempt", "deaths", "notStarted", "waiting",
    "permits", "box", "completion", "cancelled", "suspendedAt", "celery", "producers", "retried", "spared",
    "renewedAt", "overran", "former", "result", "outcome", "args", "parked", "message", "approval",
    "idempotent", "maxAttempts", "paused",
)  # fmt: skip
_OF_WAITING = ("status", "deadline", "queuedAt", "waiting")
_ERRORS = (RedisError, GoondanError, ValueError, TypeError, LookupError)
#: how long what cannot be read stays, and how often others look at it meanwhile
_ROUNDS, _SECONDS = 12, 9


@dataclass(eq=False)
class _LastTrip(Failure):
    """Notes the scripts of the last trip."""

    def exchange(
        self, connection: Any, script_calls: Sequence[ScriptCall[Any]], exchange: Exchange
    ) -> list[Any]:
        self.met = script_calls
        return exchange(connection, script_calls)


def spoil(world: World, pick: Random) -> bool:
    """Change the fields of a record as another version, or another program, may."""
    known = [one for one in world.calls.values() if not one.is_damaged]
    first = {next(iter(state.line)) for state in world.limit_states.values() if state.line}
    one = world.choose(pick, [one for one in known if one.id in first and pick.random() < 0.5] or known)
    key = world.ledger.keys.call(one.id) if one is not None else ""
    record = cast("dict[bytes, bytes]", world.redis.hgetall(key)) if key else {}
    if one is None or not record or pick.random() < 0.4:
        return False
    world.stop_following()
    one.is_damaged = one.is_foreign = True
    for limit in one.limits:
        world.starts.pop(limit.name, None)
    world.tell(
        pick.choice((_write_newer, _drop_fields, _write_garbage, _write_garbage))(world, key, record, pick),
        one,
    )
    return True


def _write_newer(world: World, key: str, record: dict[bytes, bytes], _: Random) -> str:
    newer: Any = {name: text.replace(b'"v":1', b'"v":2') for name, text in record.items() if b'"v":1' in text}
    world.redis.hset(key, mapping={**newer, "futureField": "1"})
    return "has a record of a newer version"


def _drop_fields(world: World, key: str, record: dict[bytes, bytes], pick: Random) -> str:
    names = pick.sample(sorted(record), min(len(record) - 1, pick.choice([1, 1, 2, 5])))
    if names:
        world.redis.hdel(key, *names)
    return f"has lost {names}"


def _write_garbage(world: World, key: str, record: dict[bytes, bytes], pick: Random) -> str:
    known: list[Any] = [*sorted(record), *_FIELDS]
    if b"waiting" in record and pick.random() < 0.5:
        known = list(_OF_WAITING)
    fields: Any = {name: pick.choice(_GARBAGE) for name in pick.sample(known, pick.choice([1, 1, 2]))}
    world.redis.hset(key, mapping=fields)
    return f"has {fields}"


def _tolerant(deed: Deed) -> Deed:
    """Let a step end where a script fails that is about spoilt records alone."""

    @wraps(cast("Callable[..., bool]", deed))
    def tolerant(world: World, pick: Random) -> bool:
        trip = _LastTrip()
        try:
            with refusing(trip, lambda: None):
                return deed(world, pick)
        except _ERRORS as error:
            concerned = _concerned(world, trip)
            if not concerned or not all(one.is_foreign for one in concerned):
                raise
            world.note(f"{deed.__name__} ended with {error!r}"[:120])
            for worker in world.workers:
                worker.held = {
                    token: held
                    for token, held in worker.held.items()
                    if world.calls[held.claim.run.id] not in concerned
                }
            return True

    return cast("Deed", tolerant)


def _concerned(world: World, trip: _LastTrip) -> list[KnownCall]:
    """Return the calls that the scripts of a trip name."""
    words = trip.words
    return [one for one in world.calls.values() if any(one.id in word for word in words)]


def heal_fields(world: World) -> None:
    """Let processes look at what they cannot read; then it expires, and all faults are over."""
    world.is_healing = True
    for worker in world.workers:
        worker.is_frozen = False
    for _ in range(_ROUNDS):
        world.now += _SECONDS
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        for deed in _WORK * 4:
            deed(world, world.pick)
    _require_passed(world)
    for one in world.calls.values():
        if one.is_foreign:
            world.redis.delete(world.ledger.keys.call(one.id))
            overwrite(world, one)
    heal(world)


def _require_passed(world: World) -> None:
    """Raise BrokenPromiseError if calls wait for a permit that is free."""
    read_limits(world)
    for name, state in world.limit_states.items():
        is_due = state.look_at is not None and state.look_at <= world.milliseconds  # a batch was full
        if world.limits[name].kind != "seats" or is_due:
            continue
        waiting = [world.name(world.calls[one]) for one in state.line if not world.calls[one].is_foreign]
        if waiting and all(world.status(world.calls[one]) in (b"done", b"dead") for one in state.holders):
            raise BrokenPromiseError(f"{name} is free, and {', '.join(waiting)} wait behind a record")


_WORK = tuple(map(_tolerant, (workers.reserve, workers.claim, workers.mark, workers.begin, workers.finish)))
_STEPS = tuple((_tolerant(deed), least) for deed, least in TABLE)
FOREIGN_FIELDS = Scene("foreign-fields", table=(*_STEPS, (spoil, 3)), heal=heal_fields, grave=SWARM.grave)
