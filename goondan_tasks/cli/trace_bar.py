"""When each call waited and ran, as a bar on a time axis that all share."""

from collections.abc import Sequence

from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.trace import TraceNode


class TraceBar:
    """Draws bars of ``width`` characters: ``·`` for waiting, ``█`` for running."""

    def __init__(self, nodes: Sequence[TraceNode], width: int) -> None:
        self.width = width
        spans = [_span(node) for node in nodes]
        self._first = min(queued for queued, _, _ in spans)
        self._scale = width / max(1.0, max(ended for _, _, ended in spans) - self._first)

    def draw(self, node: TraceNode) -> str:
        """Draw the bar of one call: at least one character of it."""
        queued, started, ended = (round((moment - self._first) * self._scale) for moment in _span(node))
        begin = min(queued, self.width - 1)
        run = max(0 if node.running_seconds is None else 1, ended - started)
        wait = max(started - queued, 0 if run else 1)
        return (" " * begin + "·" * wait + "█" * run)[: self.width].ljust(self.width)


def _span(node: TraceNode) -> tuple[float, float, float]:
    """Return when a call was queued, began to run and ended, in ms; until now if it goes on."""
    queued = epoch_milliseconds(node.queued_at)
    started = queued + node.waiting_seconds * 1000
    return queued, started, started + (node.running_seconds or 0) * 1000
