"""Walk for some minutes: ``python -m tests.simulation --minutes 20 --seed 1``.

The scenes share the time; ``--scene NAME`` takes walks of one alone. With ``--mutations`` faults are planted,
one after the other, and each must be found within a minute of processor time; with ``--only TEXT`` only those
whose names contain the text. With ``--model`` the model of the protocol is explored, further than ``make
test`` does, and rules are left out of it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis import Redis

from tests.simulation.all_scenes import ALL_MUTATIONS, SCENES
from tests.simulation.model_runs import report
from tests.simulation.mutations import GUARDED_TWICE
from tests.simulation.scenes import Scene
from tests.simulation.scripts import simulated_scripts
from tests.simulation.server import private_server
from tests.simulation.silence import silence
from tests.simulation.walk import Failure, make_steps, replay, shrink, tell

COUNT = 150
MUTATION_SECONDS = 60
#: how far apart the seeds of two processes begin
SEEDS = 1_000_000


def main() -> None:
    """Take walks until the time is up; end with 1 if a promise is broken, or a planted fault is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mutations", action="store_true")
    parser.add_argument("--only", default="", help="plant only mutations whose names contain this text")
    parser.add_argument("--model", action="store_true", help="explore the model instead of walking")
    parser.add_argument("--scene", default="", choices=["", *(scene.name for scene in SCENES)])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="walk in so many at once")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server stays
    if asked.model:
        sys.exit(not report())
    if asked.processes > 1 and not asked.mutations:
        sys.exit(_walk_in_processes(asked.processes, asked.seed, asked.minutes, asked.scene))
    silence()
    scenes = [scene for scene in SCENES if asked.scene in ("", scene.name)]
    seconds = 60 * asked.minutes / len(scenes)
    with private_server() as redis:
        if asked.mutations:
            are_well = [_find_mutations(redis, asked.only, scenes)]
        else:
            are_well = [_walk(redis, scene, asked.seed, seconds) for scene in scenes]
    sys.exit(not all(are_well))


def _walk_in_processes(count: int, seed: int, minutes: float, scene: str) -> int:
    """Walk in processes, each with its own server and its own seeds; return 1 if one has found a failure."""
    command = [sys.executable, "-m", "tests.simulation", "--processes", "1", "--minutes", str(minutes)]
    command += ["--scene", scene] if scene else []
    seeds = [str(seed + number * SEEDS) for number in range(count)]
    children = [subprocess.Popen([*command, "--seed", one]) for one in seeds]
    try:
        codes = [child.wait() for child in children]
        return int(any(codes))
    finally:
        for child in children:
            child.terminate()
            child.wait()


def _walk(redis: Redis, scene: Scene, first: int, seconds: float) -> bool:
    with simulated_scripts():
        failure, seed, took = _first_failure(redis, scene, first, seconds)
        if failure is not None:
            print(f"{scene.name}:", tell(seed, COUNT, shrink(scene.parts(redis), failure, scene)))
            return False
    steps = COUNT * (seed - first)
    print(
        f"{scene.name}: seeds {first} to {seed}: {steps} steps in {took:.0f} s, {steps / took:.0f} a second; "
        "nothing broke",
        flush=True,
    )
    return True


def _find_mutations(redis: Redis, text: str, scenes: Sequence[Scene]) -> bool:
    missed = 0
    for name, (scene, mutation) in ALL_MUTATIONS.items():
        if text not in name or scene not in scenes:
            continue
        others = [ALL_MUTATIONS[GUARDED_TWICE[name]][1]] if name in GUARDED_TWICE else []
        with simulated_scripts(mutation, *others):
            clock = partial(_busy_seconds, redis)
            failure, seed, took = _first_failure(redis, scene, 1, MUTATION_SECONDS, clock)
        reason = "NOT FOUND" if failure is None else failure.reason[:80]
        together = f" (with: {others[0].name})" if others else ""
        print(f"{took:5.1f} s  seed {seed:<5} {name}{together}: {reason}", flush=True)
        missed += failure is None
    return not missed


def _first_failure(
    redis: Redis, scene: Scene, first: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[Failure | None, int, float]:
    """Return the first failure, the last seed, and how many seconds that took by ``clock``."""
    parts = scene.parts(redis)
    begun, seed = clock(), first
    while (took := clock() - begun) < seconds:
        failure = replay(parts, make_steps(seed, COUNT, scene), scene)
        if failure is not None:
            return failure, seed, clock() - begun
        seed += 1
    return None, seed, took


def _busy_seconds(redis: Redis) -> float:
    """Return the processor seconds of this process and the server: one waits while the other works."""
    server: Any = redis.info("cpu")
    return time.process_time() + float(server["used_cpu_user"]) + float(server["used_cpu_sys"])


if __name__ == "__main__":
    main()
