"""Walks: made from a seed, replayed, and made smaller if they fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.simulation.invariants import BrokenPromiseError, check, check_lifetimes, heal
from tests.simulation.world import Parts, World

#: how likely a step is in some walks; each walk has its own mix
_WEIGHTS = (0, 1, 1, 3, 8)
STEPS = (
    "submit",
    "submit_other_arguments",
    "send_plain_message",
    "cancel",
    "complete",
    "approve",
    "reserve",
    "claim",
    "mark",
    "begin",
    "finish",
    "finish_many",
    "suspend",
    "go_on_after_pause",
    "report_progress",
    "renew",
    "give_back",
    "freeze",
    "thaw",
    "kill",
    "put_back",
    "sweep",
    "settle",
    "damage",
    "deliver_twice",
    "oversleep",
    "tick",
)
#: without these nothing happens
_ALWAYS = {"submit": 3, "reserve": 3, "mark": 3, "begin": 3, "finish": 2, "sweep": 1, "settle": 2, "tick": 2}


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


def make_steps(seed: int, count: int) -> list[Step]:
    """Return the steps of a walk."""
    random = Random(seed)
    weights = [max(random.choice(_WEIGHTS), _ALWAYS.get(name, 0)) for name in STEPS]
    names = random.choices(STEPS, weights, k=count)
    return [Step(name, random.randrange(2**32)) for name in names]


def replay(parts: Parts, steps: Sequence[Step]) -> Failure | None:
    """Take steps in a new world, then heal it; return what broke."""
    world = World(parts)
    taken = 0
    try:
        for taken, step in enumerate(steps, 1):  # noqa: B007 - told below
            if getattr(world, step.name)(Random(step.seed)):
                check(world)
        check_lifetimes(world)
        heal(world)
    except Exception as error:  # noqa: BLE001 - any fault of the code under test is a finding
        reason = str(error) if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: {error}"
        return Failure(reason, tuple(steps[:taken]), tuple(world.story))
    return None


def shrink(parts: Parts, failure: Failure, attempts: int = 400) -> Failure:
    """Leave out steps as long as the walk still fails in the same way (delta debugging)."""
    kind, size = _kind(failure), max(1, len(failure.steps) // 2)
    while attempts and size:
        start = 0
        while start < len(failure.steps) and attempts:
            attempts -= 1
            fewer = failure.steps[:start] + failure.steps[start + size :]
            found = replay(parts, fewer)
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
