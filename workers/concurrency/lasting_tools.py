"""Which tools are run on threads of their own, because their calls would keep the short ones waiting."""

from collections.abc import Callable
from time import monotonic, thread_time

from goondan_tasks.messages import ToolCall
from workers.concurrency.threads import SHORT_SECONDS

#: a handler that waits this long for something else than the processor had better wait beside others
IDLE_SECONDS = 0.001

#: how many of them in a row are no accident: the machine may have something else to do, too
SURE = 3


class Stopwatch:
    """Times the plain handlers of a run, each a ``with`` block; not what surrounds them.

    Whoever sends something to Redis waits for the interpreter then, and that is nobody's habit.
    """

    __slots__ = ("_begun", "_processor", "_read", "_wall")

    def __init__(
        self, wall: Callable[[], float] = monotonic, processor: Callable[[], float] = thread_time
    ) -> None:
        self._wall = wall
        self._processor = processor
        self._read: tuple[float, float] | None = None

    def __enter__(self) -> None:
        self._begun = self._wall(), self._processor()

    def __exit__(self, *_: object) -> None:
        wall = self._wall() - self._begun[0]
        self._read = wall, wall - (self._processor() - self._begun[1])

    def take(self) -> tuple[float, float] | None:
        """Return, once, how many seconds a handler took, and how many of them it waited: for a reply, say."""
        read, self._read = self._read, None
        return read


class LastingTools:
    """Learns from each run whether the next ones of its tool are likely to last."""

    def __init__(self) -> None:
        self._suspicions: dict[tuple[str, str], int] = {}

    def has(self, call: ToolCall) -> bool:
        """Say whether a call's tool is one of them."""
        return self.has_tool(call.agent_name, call.tool_name)

    def has_tool(self, agent: str, tool: str) -> bool:
        """Say whether a tool of an agent is one of them."""
        return self._suspicions.get((agent, tool), 0) >= SURE

    def learn(self, call: ToolCall, stopwatch: Stopwatch) -> None:
        """Take note of what a handler took, if one has run."""
        seconds = stopwatch.take()
        if seconds is None:
            return
        wall, idle = seconds
        tool = call.agent_name, call.tool_name
        if wall > SHORT_SECONDS:
            self._suspicions[tool] = SURE
        elif idle > IDLE_SECONDS:
            self._suspicions[tool] = self._suspicions.get(tool, 0) + 1
        else:
            self._suspicions.pop(tool, None)
