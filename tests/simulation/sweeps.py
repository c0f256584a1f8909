"""What all processes look after: messages and calls of workers that are gone."""

from random import Random

from goondan_tasks.contract.errors import LimitError
from goondan_tasks.ledger.record import Verdict
from tests.simulation.world import BrokenPromiseError, World


def put_back(world: World, _: Random) -> bool:
    """Put back the messages of workers that have not renewed their reservations."""
    return bool(world.in_flight.give_back(world.in_flight.overdue(1)))


def sweep(world: World, _: Random) -> bool:
    """Take the calls that are due."""
    due = world.due()
    claims = world.ledger.sweep("sweeper").run(world.redis)
    world.swept += claims
    for claim in claims:
        one = world.known(claim.run.id)
        world.tell(f"was swept: {claim.verdict}", one)
        if due.get(claim.run.id, 0) > world.milliseconds + 1 and one.id not in world.far:
            raise BrokenPromiseError(f"{world.name(one)} was swept before it was due")
    return bool(claims)


def wake(world: World, _: Random) -> bool:
    """Queue the scheduled calls whose time has come, as workers do every half second."""
    return bool(world.reaper.wake().queued)


def settle(world: World, pick: Random) -> bool:
    """Settle what a sweep has taken, unless the sweeper dies."""
    if not world.swept:
        return False
    claim = world.swept.pop(pick.randrange(len(world.swept)))
    if claim.verdict is Verdict.LIMITED and pick.random() < 0.2:
        world.reaper.fail(claim, LimitError("It waited too long."))  # and dies, before it has left its queue
    elif pick.random() >= 0.15:
        world.reaper.settle(claim)
    return True
