"""How far a running call has come, for people."""

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.progress import Progress

BAR_WIDTH = 24


def with_bar(line: str, progress: Progress) -> RenderableType:
    """Put a call's progress behind ``line``: a bar if there is a total, else only the numbers."""
    row = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = [Text(line)]
    if progress.total is not None:
        # without a total above 0 the bar would never be full
        cells.append(ProgressBar(total=progress.total or 1, completed=_completed(progress), width=BAR_WIDTH))
    row.add_row(*cells, Text(progress_text(progress)))
    return row


def progress_text(progress: Progress) -> str:
    """Write the numbers and the message: ``3/10 · reading page 3``."""
    numbers = f"{progress.done:g}" if progress.total is None else f"{progress.done:g}/{progress.total:g}"
    return numbers if progress.message is None else f"{numbers} · {on_one_line(progress.message)}"


def _completed(progress: Progress) -> float:
    return progress.done if progress.total else 1
