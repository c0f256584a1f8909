"""Those that look at calls while they run: the worker's watch for cancelled calls, and waits of producers."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from goondan_tasks.client.results import Expected
from goondan_tasks.contract.errors import CallNotFoundError
from tests.simulation.world import BrokenPromiseError, KnownCall, World
from workers.delivery.cancel_watch import CancelWatch


def look_for_cancelled(world: World, pick: Random) -> bool:
    """Let a worker look which of its runs are cancelled."""
    worker = world.awake(pick, lambda one: one.held)
    if worker is None:
        return False
    watchdog: Any = SimpleNamespace(watch=lambda *_: None)
    watch = CancelWatch(world.ledger, watchdog)
    runs = [
        (world.calls[held.claim.run.id], watch.hold(replace(held.claim, asked_at=0.0), lambda: None))
        for held in worker.held.values()
    ]
    watch.look()
    for one, cancellation in runs:
        if cancellation.is_set() != one.is_cancelled and not (one.is_damaged or one.is_doubtful):
            raise BrokenPromiseError(f"{worker.name} was not told whether {world.name(one)} is cancelled")
    return True


def wait_for_results(world: World, pick: Random) -> bool:
    """Let a producer that waits for all calls look for their results, as it does every two seconds."""
    if not world.calls:
        return False
    for call_id, expected in world.producer.look(list(world.calls)).items():
        _require_right(world, world.calls[call_id], expected)
    return True


def _require_right(world: World, one: KnownCall, expected: Expected) -> None:
    """Raise BrokenPromiseError unless a wait has got what is stored."""
    try:
        result = expected.result()
    except CallNotFoundError as error:
        if not (one.is_damaged or one.is_doubtful):
            raise BrokenPromiseError(f"the wait for {world.name(one)} ended with {error}") from error
        return
    is_final = result is not None and result.status != "pending"
    if not one.is_damaged and is_final != (one.result is not None):
        raise BrokenPromiseError(f"the wait for {world.name(one)} has got {result}, stored is {one.result!r}")
