"""Walks: made from a seed, replayed, and made smaller if they fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from tests.simulation.invariants import check_lifetimes
from tests.simulation.scenes import SWARM, Scene


class Step(NamedTuple):
    """What happens, and the seed by which it chooses."""

    name: str
    seed: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken promise, the steps that lead to it, and what happened on the way."""

    reason: str
    steps: tuple[Step, ...]
    story: tuple[str, ...]


def make_steps(seed: int, count: int, scene: Scene = SWARM) -> list[Step]:
    """Return the steps of a walk."""
    random = Random(seed)
    names = random.choices([deed.__name__ for deed, _ in scene.table], scene.choose_weights(random), k=count)
    return [Step(name, random.randrange(2**32)) for name in names]


def replay(parts: Any, steps: Sequence[Step], scene: Scene = SWARM) -> Failure | None:
    """Take steps in a new world, then heal it; return what broke. ``parts`` are those of the scene."""
    world = scene.world(parts)
    taken = 0
    try:
        for taken, step in enumerate(steps, 1):  # noqa: B007 - told below
            world.pick, told = Random(step.seed), len(world.story)
            # a step of several acts may find that the last of them is not possible
            if scene.deed(step.name)(world, world.pick) or len(world.story) > told:
                scene.check(world)
        if world.is_followed:
            check_lifetimes(world)
        scene.heal(world)
    except Exception as error:  # noqa: BLE001 - any fault of the code under test is a finding
        reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Failure(reason, tuple(steps[:taken]), tuple(world.story))
    finally:
        world.close()
    return None


def shrink(parts: Any, failure: Failure, scene: Scene = SWARM, attempts: int = 400) -> Failure:
    """Leave out steps as long as the walk still fails in the same way (delta debugging)."""
    kind, size = _kind(failure), max(1, len(failure.steps) // 2)
    while attempts and size:
        start = 0
        while start < len(failure.steps) and attempts:
            attempts -= 1
            fewer = failure.steps[:start] + failure.steps[start + size :]
            found = replay(parts, fewer, scene)
            if found is not None and _kind(found) == kind:
                failure = found
            else:
                start += size
        size //= 2
    return failure


def _kind(failure: Failure) -> str:
    """Return a reason without its numbers."""
    return "".join(letter for letter in failure.reason.partition(":")[0] if not letter.isdigit())[:60]


def tell(seed: int, count: int, failure: Failure) -> str:
    """Describe a failure in at most a screen."""
    lines = [
        f"seed {seed}, {count} steps: {failure.reason[:600]}",
        f"{len(failure.steps)} steps lead there:",
        *failure.story[-25:],
    ]
    return "\n".join(lines)
