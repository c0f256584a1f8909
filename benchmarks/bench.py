"""What every case gets: the fleet, the amounts, and the lanes in their turns."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.fleet import Fleet, in_turns
from benchmarks.lane import Lane, LaneFailed
from benchmarks.options import Options
from benchmarks.shape import Shape
from benchmarks.systems import SYSTEMS, System


def installed_systems() -> list[System]:
    """Return the systems whose packages are there."""
    return [system for system in SYSTEMS if system.is_installed]


@dataclass(slots=True)
class Bench:
    """A run: its fleet, its options, and the systems that can take part."""

    fleet: Fleet
    options: Options
    systems: Sequence[System] = field(default_factory=installed_systems)
    _usual_lanes: list[Lane] = field(default_factory=list, init=False)
    _resources: ExitStack = field(default_factory=ExitStack, init=False)

    def usual_lanes(self) -> list[Lane]:
        """Return a lane of every system with the usual shape; they work until the run ends."""
        if not self._usual_lanes:
            wanted = [(system, Shape()) for system in self.systems]
            self._usual_lanes = self._resources.enter_context(self.fleet.working(wanted))
        return self._usual_lanes

    def close(self) -> None:
        """End the usual lanes."""
        self._resources.close()

    def turns(
        self, lanes: Sequence[Lane], measure: Callable[[Lane], None], rounds: int | None = None
    ) -> dict[Lane, str]:
        """Warm all lanes up, then measure each in its turns; return why those that failed did.

        A lane that failed is left out from then on. Each turn begins with a few calls that do not
        count: a worker that polls looks less often while it has nothing to do.
        """
        failures: dict[Lane, str] = {}

        def attempt(lane: Lane, *steps: Callable[[Lane], None]) -> None:
            if lane in failures:
                return
            try:
                for step in steps:
                    step(lane)
            except LaneFailed as failure:
                failures[lane] = str(failure)
                self.say(failures[lane])

        for lane in lanes:
            attempt(lane, Lane.warm_up)
        for lane in in_turns(lanes, rounds or self.options.rounds):
            attempt(lane, Lane.wake_up, measure)
        return failures

    def say(self, text: str) -> None:
        """Tell whoever waits what is going on."""
        print(text, file=sys.stderr, flush=True)
