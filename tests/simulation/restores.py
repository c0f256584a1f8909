"""A Redis that goes back to an older copy of its data: a file is restored, or a replica that lags takes over.

Only what Redis has lost may be lost. Workers, producers and sweepers live on with what they believe: claims,
marks, leases, results that are not stored yet. What is known of each call goes back to the copy, and from
there on all invariants hold again, the rules of the model among them. What the copy does not know is this:

- a call that was accepted since: it is unknown until it is submitted again, and then stands behind the others
- a claim, a mark or a renewal: the call may begin elsewhere beside a run of it, until its worker looks
- a result, a cancel, a completion: they have never been
- the start of a run: it counts for no rate
"""

from copy import copy, deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation import workers
from tests.simulation.conformance import Conformance
from tests.simulation.healing import heal
from tests.simulation.invariants import check
from tests.simulation.scenes import SWARM, Scene
from tests.simulation.scripts import watch_scripts
from tests.simulation.steps import TABLE
from tests.simulation.world import LEASE, THINKER, BrokenPromiseError, Held, KnownCall, Parts, World

#: replaces a database by a copy of another one, with all lifetimes. ARGV: the two numbers
_COPY = """
redis.call('SELECT', ARGV[2])
redis.call('FLUSHDB')
redis.call('SELECT', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', ARGV[2]) end
"""
_LIVE, _SAVED = 0, 1
#: what Redis knows of a call
_FACTS = (
    "number", "begun", "is_cancelled", "is_run_now", "retry_at", "is_damaged", "is_lost", "was_marked",
    "is_completed", "result",
)  # fmt: skip
#: how many rounds the workers may need for what they hold
_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Saved:
    """What was known of the data when they were copied."""

    calls: dict[str, dict[str, Any]]
    conformance: Conformance
    starts: dict[str, list[tuple[int, str]]]
    limit_states: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """The record of a call as it was restored."""

    token: bytes | None
    worker: bytes | None
    attempt: bytes | None
    is_unstarted: bool
    due: float

    def knows_start(self, worker: str, attempt: int) -> bool:
        """Whether it is the record of this run, with its mark."""
        is_its = (self.worker, self.attempt) == (worker.encode(), str(attempt).encode())
        return self.token is not None and is_its and not self.is_unstarted


class RestoresWorld(World):
    """A swarm whose data may go back to a copy."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.saved: Saved | None = None
        self.copy_script = parts.redis.register_script(_COPY)

    def look(self) -> None:
        self._find_again()
        super().look()

    def _find_again(self) -> None:
        """Note the lost calls whose messages a worker had."""
        lost = [one for one in self.calls.values() if one.is_lost and not one.is_damaged]
        with self.redis.pipeline(transaction=False) as pipe:
            for one in lost:
                pipe.exists(self.ledger.keys.call(one.id))
            for one, is_there in zip(lost, pipe.execute(), strict=True):
                one.is_lost = not is_there


def save(world: RestoresWorld, pick: Random) -> bool:
    """Copy all data."""
    if not world.calls or (world.saved is not None and pick.random() < 0.7):
        return False
    world.copy_script(args=[_LIVE, _SAVED])
    calls = {one.id: _facts_of(one) for one in world.calls.values()}
    starts, states = deepcopy(world.starts), dict(world.limit_states)
    world.saved = Saved(calls, world.conformance.copy(), starts, states)
    world.note("all data are saved")
    return True


def _facts_of(one: KnownCall) -> dict[str, Any]:
    return {name: copy(getattr(one, name)) for name in _FACTS}


def restore(world: RestoresWorld, pick: Random) -> bool:
    """Put the copy back; producers submit some calls again that are lost."""
    saved = world.saved
    if saved is None:
        return False
    world.count_starts()  # of runs that take longer
    world.copy_script(args=[_SAVED, _LIVE])
    world.show_time()
    world.note("the saved data are back")
    kept = _read_kept(world)
    _follow_from(world, saved)
    for one in world.calls.values():
        _go_back(world, one, saved, kept[one.id])
    for worker in world.workers:
        for held in worker.held.values():
            _forget(held, world.calls[held.claim.run.id], kept[held.claim.run.id])
    world.starts, world.limit_states = deepcopy(saved.starts), dict(saved.limit_states)
    world.ended.clear()
    lost = [one for one in world.calls.values() if one.is_lost and one.is_stored and not _is_own(one)]
    world.unsure = [one for one in lost if pick.random() < 0.7]
    return True


def _is_own(one: KnownCall) -> bool:
    """Whether a call is an event of the system's own, which nobody submits."""
    return one.is_event and one.call.agent_name != THINKER


def _read_kept(world: World) -> dict[str, Kept]:
    with world.redis.pipeline(transaction=False) as opened:
        pipe: Any = opened
        for one in world.calls.values():
            pipe.hmget(world.ledger.keys.call(one.id), "token", "worker", "attempt", "notStarted")
            pipe.zscore(world.ledger.keys.due, one.id)
        rows = pipe.execute(raise_on_error=False)
    found = {}
    for one, record, due in zip(world.calls.values(), rows[::2], rows[1::2], strict=True):
        token, name, attempt, unstarted = [None] * 4 if isinstance(record, Exception) else record
        found[one.id] = Kept(token, name, attempt, unstarted is not None, float(due or 0))
    return found


def _follow_from(world: World, saved: Saved) -> None:
    """Hold the scripts against the rules from the saved records on."""
    loose = world.conformance.loose
    world.conformance = saved.conformance.copy()
    world.conformance.loose |= loose
    watch_scripts(world.conformance.see)


def _go_back(world: World, one: KnownCall, saved: Saved, kept: Kept) -> None:
    """Forget of a call what the restored data do not know."""
    since = one.begun
    facts = saved.calls.get(one.id)
    if facts is None:
        fresh = KnownCall(one.call, one.submission, one.number, is_lost=True)
        facts = _facts_of(fresh)
        # of plain Celery: a worker that has the message may ask for the call, and be the only one to have it
        one.has_lost_message = not one.is_stored
        world.tell("is lost", one)
    for name, fact in facts.items():
        setattr(one, name, copy(fact))
    # a run that was marked before, and has begun since
    one.begun += [run for run in since[len(one.begun) :] if kept.knows_start(*run)]


def _forget(held: Held, one: KnownCall, kept: Kept) -> None:
    """Note what the restored data do not know of a claim."""
    is_its = kept.token == held.claim.token.encode()
    held.has_lost_lease = not is_its or kept.due < 1000 * (held.renewed_at + LEASE) - 1
    held.has_lost_mark = held.is_marked and (not is_its or kept.is_unstarted)
    if is_its and held.is_marked:  # its result counts
        one.was_marked = True


def heal_restores(world: RestoresWorld) -> None:
    """Let all workers end what they hold; then all faults are over."""
    world.is_healing = True
    for worker in world.workers:
        worker.is_frozen = False
    for _ in range(_ROUNDS):
        world.now += 1
        world.show_time()
        for worker in world.workers:
            worker.writer.flush()
            if worker.held:
                workers.renew_all(world, worker)
        for deed in _WORK * 3:
            deed(world, world.pick)
        check(world)
        if not any(worker.held or worker.messages for worker in world.workers):
            break
    else:
        names = [
            world.name(world.calls[one.claim.run.id]) for two in world.workers for one in two.held.values()
        ]
        raise BrokenPromiseError(f"workers go on with {', '.join(names)}")
    heal(world)


_WORK = (workers.claim, workers.mark, workers.begin, workers.finish)
RESTORES = Scene(
    "restores",
    (*TABLE, (save, 2), (restore, 3)),
    world=RestoresWorld,
    heal=heal_restores,
    grave=SWARM.grave,
)
