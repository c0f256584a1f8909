"""Deaths, pauses, damaged records, second deliveries, and the clock."""

from random import Random

from tests.simulation.conformance import LONG_MS
from tests.simulation.sweeps import sweep
from tests.simulation.workers import begin, claim, mark, reserve
from tests.simulation.world import AGENT, QUEUE_SECONDS, KnownCall, World


def freeze(world: World, pick: Random) -> bool:
    """Stop a worker; it goes on later with what it knew."""
    worker = world.awake(pick)
    if worker is None or pick.random() < 0.5:
        return False
    worker.is_frozen = True
    world.note(f"{worker.name} is frozen")
    return True


def thaw(world: World, pick: Random) -> bool:
    """Let frozen workers go on."""
    frozen = [worker for worker in world.workers if worker.is_frozen]
    for worker in frozen:
        worker.is_frozen = False
    return bool(frozen)


def hold_interpreter(world: World, pick: Random) -> bool:
    """Let a handler hold a worker's interpreter, briefly or beyond every limit: its keeper keeps leases."""
    worker = world.awake(pick, lambda one: one.held)
    if worker is None:
        return False
    seconds = pick.choice([1, 1, LONG_MS // 1000])
    world.ledger.keep_leases(worker.process, seconds).run(world.redis)
    for held in worker.held_if(lambda one: one.is_marked):
        is_cancelled = world.calls[held.claim.run.id].is_cancelled  # it counts as one that is past its limit
        held.is_overdue = held.is_overdue or is_cancelled or seconds * 1000 >= LONG_MS
    world.note(f"{worker.name} could do nothing for {seconds} s")
    return True


def kill(world: World, pick: Random) -> bool:
    """Kill a worker; another one takes its place."""
    number = pick.randrange(len(world.workers))
    worker = world.workers[number]
    if not (worker.held or worker.messages) and pick.random() < 0.9:
        return False
    world.end(worker)
    if pick.random() < 0.4:  # the orchestrator has seen it
        world.ledger.end_leases(worker.process).run(world.redis)
        world.left.put_back_of(worker.process)
    world.note(f"{worker.name} was killed")
    return True


def damage(world: World, pick: Random) -> bool:
    """Let another program overwrite the record of a call."""
    held = {held.claim.run.id for worker in world.workers for held in worker.held.values()}
    open_calls = [one for one in world.calls.values() if one.result is None and not one.is_lost]
    one = world.choose(pick, [one for one in open_calls if one.id in held] or open_calls)
    if one is None or pick.random() < 0.6:
        return False
    overwrite(world, one)
    return True


def overwrite(world: World, one: KnownCall) -> None:
    """Let another program overwrite the record of this call."""
    world.redis.set(world.ledger.keys.call(one.id), "overwritten", ex=100_000)
    one.is_damaged = True
    for (
        limit
    ) in one.limits:  # a start that is not counted yet is lost with the record, if its worker dies, too
        world.starts.pop(limit.name, None)
    world.conformance.lose(one.id)
    world.tell("has a damaged record", one)


def deliver_twice(world: World, pick: Random) -> bool:
    """Let the broker deliver a message once more."""
    one = world.choose(pick, [one for one in world.calls.values() if one.call.agent_name == AGENT])
    if one is None or one.is_event:
        return False
    world.push(one)
    return True


def oversleep(world: World, pick: Random) -> bool:
    """Stop a worker until its leases are over and others have its calls, then let it go on."""
    worker = world.awake(pick, lambda one: one.held)
    if worker is None:
        return False
    world.count_starts()
    worker.is_frozen = True
    for seconds in (9, 9, 9, 9):  # sweepers look all the time, so none spares the claims
        world.now += seconds
        world.show_time()
        sweep(world, pick)
    while world.swept:
        world.reaper.settle(world.swept.pop())
    for step in (reserve, claim, mark, begin)[: pick.randrange(5)]:
        step(world, pick)
    worker.is_frozen = False
    world.note(f"{worker.name} was frozen beyond its leases")
    return True


def tick(world: World, pick: Random) -> bool:
    """Let time pass; Redis' clock may also be set back a little."""
    world.count_starts()
    world.now += pick.choice([0.001, 0.5, 4, 4, 9, 9, 31, 40, -2])
    if pick.random() < 0.03:
        world.now += 2 * QUEUE_SECONDS
    world.show_time()
    return True
