"""Figures that were measured several times: their median, their spread, and how they compare."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.systems import System


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure of every system, a sample for each turn."""

    unit: str
    more_is_better: bool = True
    of: dict[System, list[float]] = field(default_factory=dict)

    def add(self, system: System, figure: float) -> None:
        """Keep one more sample of a system."""
        self.of.setdefault(system, []).append(figure)

    def median(self, system: System) -> float | None:
        """Return a system's median, ``None`` if it has no sample."""
        figures = self.of.get(system)
        return statistics.median(figures) if figures else None

    def best_peer(self) -> System | None:
        """Return the peer whose median is the best, ``None`` without peers."""
        return self.best_of(*(system for system in self.of if system.is_peer))

    def best_of(self, *systems: System) -> System | None:
        """Return the one of ``systems`` whose median is the best, ``None`` if none has one."""
        measured = [system for system in systems if self.of.get(system)]
        pick = max if self.more_is_better else min
        return pick(measured, key=lambda system: statistics.median(self.of[system]), default=None)

    def ratio(self, system: System, to: System | None) -> float | None:
        """Return a system's median divided by another's, ``None`` if one is missing."""
        mine = self.median(system)
        theirs = self.median(to) if to else None
        return mine / theirs if mine is not None and theirs else None


def percentile(figures: Sequence[float], percent: float) -> float:
    """Return the smallest figure that ``percent`` of them do not exceed (nearest rank)."""
    ranked = sorted(figures)
    rank = math.ceil(percent / 100 * len(ranked))
    return ranked[max(rank, 1) - 1]
