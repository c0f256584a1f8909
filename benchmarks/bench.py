"""What every case gets: the fleet, the amounts, and the systems in their turns."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.lanes import Fleet, Lane, LaneFailed
from benchmarks.options import Options
from benchmarks.systems import Shape, System

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bench:
    """A run: its fleet, its options, and the systems that are installed."""

    fleet: Fleet
    options: Options
    systems: Sequence[System]

    def turns(
        self,
        wanted: Sequence[tuple[System, Shape]],
        measure: Callable[[Lane], None],
        rounds: int | None = None,
    ) -> dict[tuple[System, Shape], str]:
        """Measure each in its turns, alone and with new processes; return why those that failed did.

        A lane that failed is left out from then on.
        """
        failures: dict[tuple[System, Shape], str] = {}
        for system, shape in in_turns(wanted, rounds or self.options.rounds):
            if (system, shape) in failures:
                continue
            try:
                with self.fleet.working(system, shape) as lane:
                    measure(lane)
            except LaneFailed as failure:
                failures[system, shape] = str(failure)
                self.say(str(failure))
        return failures

    def say(self, text: str) -> None:
        """Report progress to the terminal."""
        print(text, file=sys.stderr, flush=True)


def in_turns(items: Sequence[T], rounds: int) -> Iterator[T]:
    """Give every item once a round, each round beginning with another one: noise hits all alike."""
    for turn in range(rounds):
        first = turn % len(items)
        yield from (*items[first:], *items[:first])
