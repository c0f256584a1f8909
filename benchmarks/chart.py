"""The bars of a run as a picture, or as text where matplotlib is missing."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from benchmarks.section import Bars, number

_WIDTH = 50
_OURS, _OTHERS = "#2166ac", "#b0b0b0"


def write_chart(panels: Sequence[Bars], folder: Path) -> Path:
    """Write ``chart.svg``, else ``chart.txt``; return the file."""
    if importlib.util.find_spec("matplotlib"):
        file = folder / "chart.svg"
        _draw(panels, file)
    else:
        file = folder / "chart.txt"
        file.write_text("\n".join(text_chart(panels)) + "\n", "utf-8")
    return file


def text_chart(panels: Sequence[Bars]) -> list[str]:
    """Return the bars as lines of text."""
    return [line for panel in panels for line in ["", f"{panel.title}, {panel.unit}", *_text_bars(panel)]]


def _text_bars(panel: Bars) -> list[str]:
    longest = max(panel.figures.values(), default=0) or 1
    widest = max(map(len, panel.figures), default=0)
    return [
        f"{name:<{widest}}  {'#' * max(1, round(_WIDTH * figure / longest))} {number(figure)}"
        for name, figure in panel.figures.items()
    ]


def _draw(panels: Sequence[Bars], file: Path) -> None:
    height = 0.6 + 0.28 * max(len(panel.figures) for panel in panels)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(9, height * len(panels)), layout="constrained"
    )
    for panel, axes in zip(panels, figure.subplots(len(panels), squeeze=False)[:, 0], strict=True):
        names, values = list(panel.figures), list(panel.figures.values())
        drawn = axes.barh(names, values, color=[_OURS if "Goondan" in name else _OTHERS for name in names])
        axes.bar_label(drawn, labels=[number(value) for value in values], padding=3)
        axes.set_title(f"{panel.title} ({panel.unit})", loc="left", fontsize=10)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
