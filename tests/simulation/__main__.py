"""Walk for some minutes: ``python -m tests.simulation --minutes 20 --seed 1``.

With ``--mutations`` faults are planted, one after the other, and each must be found within a minute; with
``--only TEXT`` only those whose names contain the text. With ``--model`` the model of the
protocol is explored, further than ``make test`` does, and rules are left out of it.
"""

import argparse
import logging
import random
import sys
import time

from redis import Redis

from tests.simulation.model_runs import report
from tests.simulation.mutations import GUARDED_TWICE, MUTATIONS
from tests.simulation.scripts import simulated_scripts
from tests.simulation.server import private_server
from tests.simulation.walk import Failure, make_steps, replay, shrink, tell
from tests.simulation.world import Parts

COUNT = 150
MUTATION_SECONDS = 60


def main() -> None:
    """Take walks until the time is up; end with 1 if a promise is broken, or a planted fault is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mutations", action="store_true")
    parser.add_argument("--only", default="", help="plant only mutations whose names contain this text")
    parser.add_argument("--model", action="store_true", help="explore the model instead of walking")
    asked = parser.parse_args()
    if asked.model:
        sys.exit(not report())
    logging.disable(logging.CRITICAL)
    with private_server() as redis:
        is_well = (
            _find_mutations(redis, asked.only)
            if asked.mutations
            else _walk(redis, asked.seed, 60 * asked.minutes)
        )
    sys.exit(not is_well)


def _walk(redis: Redis, first: int, seconds: float) -> bool:
    with simulated_scripts():
        failure, seed, took = _first_failure(Parts(redis), first, seconds)
        if failure is not None:
            print(tell(seed, COUNT, shrink(Parts(redis), failure)))
            return False
    steps = COUNT * (seed - first)
    print(
        f"seeds {first} to {seed}: {steps} steps in {took:.0f} s, {steps / took:.0f} a second; nothing broke"
    )
    return True


def _find_mutations(redis: Redis, text: str) -> bool:
    missed = 0
    for name, mutation in MUTATIONS.items():
        if text not in name:
            continue
        others = [MUTATIONS[GUARDED_TWICE[name]]] if name in GUARDED_TWICE else []
        with simulated_scripts(mutation, *others):
            failure, seed, took = _first_failure(Parts(redis), 1, MUTATION_SECONDS)
        reason = "NOT FOUND" if failure is None else failure.reason[:80]
        together = f" (with: {others[0].name})" if others else ""
        print(f"{took:5.1f} s  seed {seed:<5} {name}{together}: {reason}", flush=True)
        missed += failure is None
    return not missed


def _first_failure(parts: Parts, first: int, seconds: float) -> tuple[Failure | None, int, float]:
    """Return the first failure, the last seed, and how many seconds that took."""
    begun, seed = time.perf_counter(), first
    while (took := time.perf_counter() - begun) < seconds:
        failure = replay(parts, make_steps(seed, COUNT))
        if failure is not None:
            return failure, seed, time.perf_counter() - begun
        seed += 1
    return None, seed, took


if __name__ == "__main__":
    main()
