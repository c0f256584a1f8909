"""Following a request: what happens below it, while it happens."""

from collections.abc import Iterator
from dataclasses import dataclass

from goondan_tasks.client import Client
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.trace import Trace, TraceNode

LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class News:
    """A call or request was made; or, with a result, it has ended."""

    node: TraceNode
    #: the agent that made it; ``None`` if it came from outside
    asker: str | None
    result: ToolCallResult | None = None

    @property
    def order(self) -> tuple[str, int]:
        """When it happened; at the same moment an answer comes after what it rests on."""
        if self.result is None:
            return self.node.queued_at, self.node.depth
        return self.node.finished_at or "", -self.node.depth


class Following:
    """Looks at the trace of a request again and again, until the request has ended."""

    def __init__(self, client: Client, correlation_id: str) -> None:
        self._client = client
        self._correlation_id = correlation_id
        self._told: set[tuple[str, bool]] = set()

    def trace(self) -> Trace:
        """Return the trace as it stands."""
        return self._client.trace(self._correlation_id)

    def news(self) -> Iterator[News]:
        """Yield everything that happens, in order of time."""
        pending = self._client.pending(self._correlation_id)
        has_ended = False
        while not has_ended:
            try:
                has_ended = pending.result(LOOK_SECONDS) is not None
            except WaitTimeout:
                has_ended = False
            yield from sorted(self._new(), key=lambda news: news.order)

    def _new(self) -> Iterator[News]:
        path: list[TraceNode] = []
        for node in self.trace().nodes:
            del path[node.depth :]
            asker = path[-1].agent if path else None
            path.append(node)
            if self._is_new(node, has_ended=False):
                yield News(node, asker)
            if node.finished_at is not None and self._is_new(node, has_ended=True):
                yield News(node, asker, self._client.pending(node.id).result())

    def _is_new(self, node: TraceNode, *, has_ended: bool) -> bool:
        is_new = (node.id, has_ended) not in self._told
        self._told.add((node.id, has_ended))
        return is_new
