"""What a case found: tables, and how the figures stand to what is promised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.samples import Samples
from benchmarks.systems import GOONDAN

NOTHING = "-"


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
class Promise:
    """A figure that the project promises, and what this run measured."""

    text: str
    measured: str
    #: ``None`` if the run did not measure it
    is_kept: bool | None


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel of the chart: one bar a name."""

    title: str
    unit: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    title: str
    text: str
    tables: Sequence[Table] = ()
    promises: Sequence[Promise] = ()
    bars: Sequence[Bars] = ()
    #: systems that failed, with the reason
    failures: Sequence[str] = ()


def comparison(title: str, samples: Samples) -> Table:
    """Compare systems: median, lowest and highest sample, ratios to ours and to the best peer."""
    best = samples.best_peer()
    rows = [
        (
            system.name,
            number(samples.median(system)),
            f"{number(min(figures))} - {number(max(figures))}",
            times(samples.ratio(system, GOONDAN)),
            times(samples.ratio(system, best)),
        )
        for system, figures in samples.of.items()
    ]
    direction = "more" if samples.more_is_better else "less"
    header = (
        f"{samples.unit}, {direction} is better",
        "median",
        "lowest - highest",
        "of ours",
        f"of {best.name}" if best else "of the best peer",
    )
    return Table(title, header, rows)


def bars(title: str, samples: Samples) -> Bars:
    """Show the medians."""
    medians = {system.name: samples.median(system) for system in samples.of}
    return Bars(title, samples.unit, {name: figure for name, figure in medians.items() if figure is not None})


def at_least(text: str, ratio: float | None, limit: float) -> Promise:
    """Promise a ratio that is not smaller than ``limit``."""
    return Promise(f"{text}: at least {limit:g} x", times(ratio), None if ratio is None else ratio >= limit)


def at_most(text: str, figure: float | None, limit: float, unit: str = "x") -> Promise:
    """Promise a figure that is not larger than ``limit``."""
    measured = NOTHING if figure is None else f"{number(figure)} {unit}"
    kept = None if figure is None else figure <= limit
    return Promise(f"{text}: at most {number(limit)} {unit}", measured, kept)


def number(figure: float | None) -> str:
    """Write a figure with three significant digits, thousands separated."""
    if figure is None:
        return NOTHING
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def times(ratio: float | None) -> str:
    """Write a ratio."""
    return NOTHING if ratio is None else f"{ratio:.2f} x"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    texts = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
    return f"| {' | '.join(texts)} |"
