"""Figures that were measured several times: their medians, how they compare, and tables that show them."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.systems import GOONDAN, PEERS

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call cost, as an average over many."""

    #: processor time of the processes, user and system, in μs
    producer: float
    worker: float
    redis: float
    #: wall time from the first submission to the last result, in μs
    wall: float
    #: bytes that Redis received and sent
    traffic: float

    @property
    def total(self) -> float:
        """Processor time of all processes, in μs."""
        return self.producer + self.worker + self.redis


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure by name, a sample for each turn."""

    unit: str
    of: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, figure: float) -> None:
        """Keep one more sample."""
        self.of.setdefault(name, []).append(figure)

    def median(self, name: str | None) -> float | None:
        """Return the median of a name, ``None`` if it has no sample."""
        return self.medians().get(name) if name else None

    def medians(self) -> dict[str, float]:
        """Return the median of every name."""
        return {name: statistics.median(figures) for name, figures in self.of.items()}

    def best_peer(self) -> str | None:
        """Return the peer with the lowest median, ``None`` without peers."""
        return self.best_of(PEERS)

    def best_of(self, names: Collection[str]) -> str | None:
        """Return the one of ``names`` with the lowest median, ``None`` if none has one."""
        measured = {name: median for name, median in self.medians().items() if name in names}
        return min(measured, key=lambda name: measured[name], default=None)

    def ratio(self, name: str, to: str | None) -> float | None:
        """Return the median of ``name`` divided by that of ``to``, ``None`` if one is missing."""
        mine, theirs = self.median(name), self.median(to)
        return mine / theirs if mine is not None and theirs else None

    def comparison(self, title: str) -> "Table":
        """Compare systems: median, lowest and highest sample, ratios to ours and to the best peer."""
        best = self.best_peer()
        rows = [
            (*row, times(self.ratio(row[0], GOONDAN.name)), times(self.ratio(row[0], best)))
            for row in self._rows()
        ]
        header = (self.unit, "median", "lowest - highest", "of ours", f"of {best or 'the best peer'}")
        return Table(title, header, rows)

    def table(self, title: str = "") -> "Table":
        """Show median, lowest and highest sample."""
        return Table(title, (self.unit, "median", "lowest - highest"), self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        return [(name, number(self.median(name)), spread(figures)) for name, figures in self.of.items()]


@dataclass(frozen=True, slots=True)
class Costs:
    """What calls cost by name, a sample for each turn."""

    of: dict[str, list[Cost]] = field(default_factory=dict)

    def add(self, name: str, cost: Cost) -> None:
        """Keep one more sample."""
        self.of.setdefault(name, []).append(cost)

    def samples(self, part: str, unit: str = "μs") -> Samples:
        """Return one part: an attribute of :class:`Cost`."""
        return Samples(
            unit, {name: [getattr(cost, part) for cost in costs] for name, costs in self.of.items()}
        )

    def ratio(self, name: str, to: str) -> float | None:
        """Return the processor time of ``name`` divided by that of ``to``, ``None`` if one is missing."""
        return self.samples("total").ratio(name, to)

    def table(self, title: str, reference: str | None = None) -> "Table":
        """Show processor time by process, with ratios of it and of wall time.

        The ratios are to ``reference``, else to the cheapest and to the fastest peer.
        """
        total, wall = self.samples("total"), self.samples("wall")
        cheapest, fastest = reference or total.best_peer(), reference or wall.best_peer()
        parts = [self.samples(part) for part in ("producer", "worker", "redis")]
        rows = [
            (
                name,
                *(number(part.median(name)) for part in (*parts, total)),
                spread(total.of[name]),
                times(total.ratio(name, cheapest)),
                times(wall.ratio(name, fastest)),
            )
            for name in self.of
        ]
        header = (
            "processor time, μs/call",
            "producer",
            "worker",
            "Redis",
            "sum",
            "lowest - highest",
            f"of {cheapest or 'the cheapest peer'}",
            f"wall time, of {fastest or 'the fastest peer'}",
        )
        return Table(title, header, rows)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header; the first column is left-aligned, the others are figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """Return the table in Markdown, aligned so that it also reads well in a terminal."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        rule = [f"{'-' * (width - 1)}:" for width in widths]
        rule[0] = "-" * widths[0]
        return [_line(cells, widths) for cells in (self.header, tuple(rule), *self.rows)]


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that the project aims at, and what this run measured."""

    text: str
    measured: str
    #: ``None`` if the run did not measure it
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    title: str
    text: str
    tables: Sequence[Table] = ()
    aims: Sequence[Aim] = ()
    #: panels of the chart by title: a bar for the median of each name
    charts: Mapping[str, Samples] = field(default_factory=dict)
    #: systems that failed, with the reason
    failures: Collection[str] = ()


def at_most(text: str, figure: float | None, limit: float, unit: str = "x") -> Aim:
    """Aim at a figure that is not larger than ``limit``."""
    measured = NOTHING if figure is None else f"{number(figure)} {unit}"
    return Aim(
        f"{text}: at most {number(limit)} {unit}", measured, None if figure is None else figure <= limit
    )


def percentile(figures: Sequence[float], percent: float) -> float:
    """Return the smallest figure that ``percent`` of them do not exceed (nearest rank)."""
    ranked = sorted(figures)
    rank = math.ceil(percent / 100 * len(ranked))
    return ranked[max(rank, 1) - 1]


def number(figure: float | None) -> str:
    """Write a figure with three significant digits, thousands separated."""
    if figure is None:
        return NOTHING
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def spread(figures: Sequence[float]) -> str:
    """Write the lowest and the highest figure."""
    return f"{number(min(figures))} - {number(max(figures))}"


def times(ratio: float | None) -> str:
    """Write a ratio."""
    return NOTHING if ratio is None else f"{ratio:.2f} x"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    texts = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
    return f"| {' | '.join(texts)} |"
