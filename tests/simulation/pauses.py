"""Agents and tools that an operator pauses and resumes, while workers die and freeze."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from redis import Redis

from broker_config import serializer
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.fleet.pauses import Pause, Paused, Pauses, field_of, pause_name
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.admission import REGISTRY
from tests.simulation.busy_limits import act, submit_one
from tests.simulation.healing import heal, work_off
from tests.simulation.invariants import check
from tests.simulation.programs import Operator, delivery_of, show_virtual_time, without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import ProgramDiedError
from tests.simulation.world import (
    AGENT,
    MOST_CALLS,
    QUEUES,
    TERMS,
    THINKER,
    BrokenPromiseError,
    KnownCall,
    Parts,
    Worker,
)
from tests.unit.workers.pool.fake_consumer import Consumer
from tests.unit.workers.revisions.lone_revisions import revisions_with
from workers.pool.consumed_queues import PausedQueues
from workers.pool.heartbeat import Heartbeat

AGENTS = (AGENT, THINKER)
#: how many rounds of a quiet worker pauses outlast
_ROUNDS = 20
#: more than twice as many calls as are queued at once, in the walks
_MANY = 8


class PausesParts(Parts):
    """The parts of the swarm, an operator, and what makes the terms on which a worker claims calls."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        show_virtual_time(redis)
        without_served_agents(self.reaper)
        self.operator = Operator(redis, self.settings)
        self.pauses = Pauses(redis, self.ledger.keys)
        self.delivery = delivery_of(redis, self.settings)
        self.delivery.revisions = revisions_with(REGISTRY)
        load_scripts(redis)


class PausesWorld(SceneWorld):
    """A swarm whose agents and tools are paused."""

    def __init__(self, parts: PausesParts) -> None:
        self.operator, self.pauses, self.delivery = parts.operator, parts.pauses, parts.delivery
        #: by process: the queues that it reads, and its heartbeat
        self.queues: dict[str, Consumer] = {}
        self.heartbeats: dict[str, Heartbeat] = {}
        #: what is paused, as the operator has been told
        self.standing: set[str] = set()
        super().__init__(parts)
        self.theme = None  # in half of all worlds calls have limits, or keys
        catalogs = {AGENT: tuple({"name": name} for name in TERMS), THINKER: ()}
        agents = [AgentRecord(name=n, swarm="s", workspace="w", catalog=catalogs[n]) for n in AGENTS]
        rows: Any = {agent.name: serializer.encode(agent.to_wire()) for agent in agents}
        self.redis.hset(self.ledger.keys.agents, mapping=rows)
        self.operator.client.agents()  # known from now on

    def new_worker(self, number: int) -> Worker:
        """Start a worker, which looks at what is paused before it reads its queues."""
        worker = super().new_worker(number)
        worker.limiter.paused = Paused()
        consumer = self.queues[worker.process] = Consumer(*QUEUES)
        heartbeat = self.heartbeats[worker.process] = Heartbeat.__new__(Heartbeat)
        heartbeat._paused = PausedQueues(consumer)
        self.notice(worker)
        return worker

    def queues_of(self, worker: Worker) -> Sequence[str]:
        return tuple(self.queues[worker.process].queues)

    def notice(self, worker: Worker) -> None:
        """Let a worker look at what is paused, as it does with each heartbeat."""
        consumer: Any = self.queues[worker.process]
        runtime: Any = SimpleNamespace(
            limiter=worker.limiter,
            pauses=self.pauses,
            standby=SimpleNamespace(is_over=False, agents=()),
            revisions=SimpleNamespace(served=AGENTS),
        )
        self.heartbeats[worker.process]._look_at_pauses(runtime, consumer)
        self.delivery.limiter = worker.limiter
        terms = self.delivery.claim_on_reserve(worker.name, [AGENT]).terms
        of_calls = {name: one for name, one in terms.items() if name == QUEUES[0]}
        claiming = self.claiming[0]
        worker.reservations.claim_with(replace(claiming, terms={**claiming.terms, **of_calls}))

    def check_claimed(self, worker: Worker, one: KnownCall) -> None:
        known, stands = worker.limiter.paused, self.pauses.read()
        agent, tool = one.call.agent_name, one.call.tool_name
        for name in (field_of(agent), field_of(agent, tool)):
            if name in known.pauses and name in stands.pauses:
                raise BrokenPromiseError(f"{self.name(one)} was claimed in spite of the pause of {name}")

    def is_held(self, one: KnownCall) -> bool:
        """Whether a pause stands that holds a call."""
        return self.pauses.read().of(one.call.agent_name, one.call.tool_name) is not None


# What operators and workers do


@contextmanager
def _doing(world: PausesWorld, pick: Random, name: str, what: str) -> Iterator[None]:
    """Let the operator act; between its trips others do, and it may die."""
    world.note(f"the operator {what} {name}")

    def others(pick: Random) -> None:
        pick.choice(_OTHERS)(world, pick)

    try:
        with world.operator.program.interrupted(pick, others):
            yield
    except ProgramDiedError:
        world.note("the operator has died")
        stands = world.pauses.read().pauses
        world.standing = {*world.standing - {name}, *({name} & stands.keys())}


def pause(world: PausesWorld, pick: Random) -> bool:
    """Pause an agent, or a tool whose calls there are."""
    operator = world.operator
    if operator.program.is_busy:
        return False
    tools = sorted({one.call.tool_name for one in world.calls.values() if not one.is_event}) or sorted(TERMS)
    tool = pick.choice([None, *tools, *tools])
    agent = AGENT if tool else pick.choice(AGENTS)
    name = field_of(agent, tool)
    with _doing(world, pick, name, "pauses"):
        operator.client.pause(agent, tool, reason="why", by="ann")
        world.standing.add(name)
    return True


def resume(world: PausesWorld, pick: Random) -> bool:
    """Resume what is paused, mostly."""
    stands = sorted(world.pauses.read().pauses.items())
    if not stands or world.operator.program.is_busy:
        return False
    _resume(world, pick, pick.choice(stands)[1])
    return True


def resume_many(world: PausesWorld, pick: Random) -> bool:
    """Let more calls of a tool wait for the end of its pause than are queued at once."""
    worker, tool = world.awake(pick), "bash__free"
    name, has_room = field_of(AGENT, tool), len(world.calls) + _MANY <= MOST_CALLS
    is_paused = bool(world.standing & {name, field_of(AGENT)})
    if worker is None or world.operator.program.is_busy or is_paused or not has_room:
        return False
    world.operator.client.pause(AGENT, tool, reason="why", by="ann")
    world.standing.add(name)
    world.note(f"the operator pauses {name}")
    world.notice(worker)
    for _ in range(_MANY):
        submit_one(world, pick, tool)
    workers.reserve_from(world, worker, QUEUES[:1], (12, 0), pick)
    act(world, pick, worker, (workers.claim,) * 12)
    _resume_in_order(world, world.pauses.read().pauses[name], worker)
    return True


def _resume(world: PausesWorld, pick: Random, one: Pause) -> None:
    name = field_of(one.agent, one.tool)
    with _doing(world, pick, name, "resumes"):
        world.operator.client.resume(one.agent, one.tool)
        world.standing.discard(name)


def notice(world: PausesWorld, pick: Random) -> bool:
    """Let a worker see what is paused; what it has reserved of an agent that it leaves goes back."""
    worker = world.awake(pick)
    if worker is None:
        return False
    before = set(world.queues_of(worker))
    world.notice(worker)
    left = before.difference(world.queues_of(worker))
    tags = [tag for tag, queue, _ in worker.messages if queue in left]
    world.in_flight.give_back(sorted(tags, reverse=True))
    worker.messages = [one for one in worker.messages if one[1] not in left]
    world.note(f"{worker.name} knows what is paused: {', '.join(worker.limiter.paused.pauses) or 'nothing'}")
    return True


# What must be true


def check_pauses(world: PausesWorld) -> None:
    """Raise BrokenPromiseError if a pause is not as the operator was told."""
    check(world)
    stands = world.pauses.read().pauses.keys()
    if not world.operator.program.is_busy and stands != world.standing:
        raise BrokenPromiseError(f"paused are {sorted(stands)}, not {sorted(world.standing)}")


def heal_pauses(world: PausesWorld) -> None:
    """End all faults: what is paused waits, all else goes on; once it is resumed, every call ends."""
    world.is_healing = True
    for number in range(len(world.workers)):
        world.workers[number] = world.new_worker(number)
    world.swept.clear()
    begun = {one.id: len(one.begun) for one in world.calls.values()}
    _work(world)
    for one in world.calls.values():
        if world.is_held(one) and len(one.begun) > begun[one.id]:
            raise BrokenPromiseError(f"{world.name(one)} began although it is paused")
    _require_ended(world, [one for one in world.calls.values() if not world.is_held(one)])
    for pause in list(world.pauses.read().pauses.values()):
        _resume_in_order(world, pause, world.workers[0])
    world.notice(world.workers[0])
    _work(world)
    _require_ended(world, world.calls.values())
    heal(world)
    check_pauses(world)


def _work(world: PausesWorld) -> None:
    """Let one worker run what it can get, until the leases of the dead have ended."""
    for _ in range(_ROUNDS):
        world.now += 4
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        work_off(world)
        check_pauses(world)


def _require_ended(world: PausesWorld, calls: Collection[KnownCall]) -> None:
    """Raise BrokenPromiseError if a call that waits for nothing has not ended."""
    for one in calls:
        is_resting = world.status(one) in {b"pending", b"scheduled"}
        waits = one.is_event or one.limits or one.is_damaged or is_resting
        if not waits and one.result is None:
            raise BrokenPromiseError(f"{world.name(one)} waits, and is not paused")


def _resume_in_order(world: PausesWorld, pause: Pause, worker: Worker) -> None:
    """Resume an agent or a tool: workers get the calls that have waited for it in their order."""
    line = world.ledger.keys.wait_queue(pause_name(pause.agent, pause.tool or ""))
    members: Any = world.redis.zrange(line, 0, -1)
    waited = [member.decode() for member in members]
    taken: list[str] = []
    _resume(world, Random(1), pause)
    world.notice(worker)
    for _ in range(2 * len(world.calls)):
        world.now += 0.1
        world.show_time()
        world.reaper.wake()
        taken += _next(world)
        if worker in world.workers and QUEUES[0] in world.queues_of(worker):
            workers.reserve_from(world, worker, [QUEUES[0]], (1, 0), world.pick)
        while worker in world.workers and worker.messages:  # it may die of a claim
            workers.claim(world, world.pick)
    if world.is_healing:
        work_off(world)
        if world.redis.exists(line):
            raise BrokenPromiseError(f"calls wait although {pause.target} was resumed")
    waited = [one for one in waited if not world.calls[one].limits]  # others wait in their own queues, too
    found = [call_id for call_id in dict.fromkeys(taken) if call_id in waited]
    if found != [call_id for call_id in waited if call_id in found]:
        raise BrokenPromiseError(f"calls that waited for {pause.target} change places: {waited}, {found}")


def _next(world: PausesWorld) -> list[str]:
    """Return the call of the next message of the queue, if there is one."""
    message: Any = world.redis.lindex(QUEUES[0], -1)
    return [] if message is None else [world.call_of(message).id]


_OTHERS: tuple[Callable[..., bool], ...] = (
    notice, notice, producers.submit, workers.reserve, workers.claim, workers.mark, workers.begin,
    workers.finish, faults.kill, sweeps.sweep, producers.cancel,
)  # fmt: skip

PAUSES = Scene(
    "pauses",
    (
        (producers.submit, 3),
        (producers.send_plain_message, 0),
        (producers.cancel, 0),
        (producers.complete, 0),
        (workers.reserve, 6),
        (workers.claim, 4),
        (workers.mark, 6),
        (workers.begin, 6),
        (workers.finish, 4),
        (workers.suspend, 0),
        (workers.renew, 2),
        (workers.give_back, 0),
        (sweeps.wake, 2),
        (workers.reconnect, 0),
        (faults.freeze, 0),
        (faults.thaw, 3),
        (faults.kill, 0),
        (faults.damage, 0),
        (faults.oversleep, 0),
        (faults.tick, 1),
        (sweeps.put_back, 0),
        (sweeps.sweep, 1),
        (sweeps.settle, 2),
        (pause, 3),
        (resume, 2),
        (resume_many, 1),
        (notice, 4),
    ),
    PausesParts,
    PausesWorld,
    check_pauses,
    heal_pauses,
    grave=("freeze", "kill", "damage", "oversleep", "suspend", "give_back"),
)
