"""Scenes: what may happen in a world, and how it ends. Each walk is one of a scene."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from redis import Redis

from tests.simulation.healing import heal
from tests.simulation.invariants import check
from tests.simulation.steps import TABLE, Deed
from tests.simulation.world import Parts, World

#: one of these, chosen for each walk, is the weight of a step if it is not less than the least one
_WEIGHTS, _CALM_WEIGHTS = (0, 1, 1, 3, 8), (0, 0, 1)


@dataclass(frozen=True, slots=True)
class Scene:
    """A kind of world, with the steps that may be taken there."""

    name: str
    #: each step, and the least weight that it has in a walk: without some of them nothing happens
    table: tuple[tuple[Deed, int], ...] = TABLE
    #: makes the parts under test, which keep nothing of a walk
    parts: Callable[[Redis], Any] = Parts
    world: Callable[[Any], Any] = World
    #: called after each step in which anything has happened
    check: Callable[[Any], None] = check
    #: ends all faults, and checks what must be true then
    heal: Callable[[Any], None] = heal

    #: steps that keep calls from their runs, so that calm walks have few of them
    grave: Collection[str] = ()

    def choose_weights(self, random: Random) -> list[int]:
        """Return a weight for each step: each walk has its own mix, and most are calm."""
        is_calm = random.random() < 0.6
        return [
            max(random.choice(_CALM_WEIGHTS if is_calm and deed.__name__ in self.grave else _WEIGHTS), least)
            for deed, least in self.table
        ]

    def deed(self, name: str) -> Deed:
        """Return a step by its name."""
        return next(deed for deed, _ in self.table if deed.__name__ == name)


SWARM = Scene("swarm", grave=("freeze", "kill", "damage", "oversleep", "suspend", "give_back"))
