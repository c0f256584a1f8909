"""Which tools are run on threads of their own, because their calls would keep the short ones waiting."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, thread_time

from goondan_tasks.messages import ToolCall
from workers.concurrency.threads import SHORT_SECONDS

#: handlers that wait this long for something else than the processor, on the average, wait side by side
IDLE_SECONDS = 0.001

#: what one run counts for in an average: a thread waits for the interpreter, too, but not in most runs
WEIGHT = 0.125

#: after so many runs on threads of its own, where each waits for the others, a tool is tried in company again
RUNS_APART = 500


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
        """Return, once, how many seconds a handler took, and how many of those it waited: for a reply, say."""
        read, self._read = self._read, None
        return read


@dataclass(slots=True)
class _Habit:
    """What a tool's runs take on the average, in seconds, or how many more of them are run apart."""

    wall: float = 0.0
    idle: float = 0.0
    apart: int = 0

    def learn(self, wall: float, idle: float) -> None:
        self.wall += WEIGHT * (wall - self.wall)
        self.idle += WEIGHT * (idle - self.idle)

    @property
    def keeps_others_waiting(self) -> bool:
        return self.wall > SHORT_SECONDS or self.idle > IDLE_SECONDS


class LastingTools:
    """Learns from each run whether the next ones of its tool are likely to last."""

    def __init__(self) -> None:
        self._habits: dict[tuple[str, str], _Habit] = {}

    def has(self, call: ToolCall) -> bool:
        """Say whether a call's tool is one of them."""
        habit = self._habits.get((call.agent_name, call.tool_name))
        return habit is not None and habit.apart > 0

    def learn(self, call: ToolCall, stopwatch: Stopwatch) -> None:
        """Take note of what a handler took, if one has run."""
        seconds = stopwatch.take()
        if seconds is None:
            return
        tool = call.agent_name, call.tool_name
        habit = self._habits.setdefault(tool, _Habit())
        if habit.apart:
            habit.apart -= 1
            return
        habit.learn(*seconds)
        if habit.keeps_others_waiting:
            self._habits[tool] = _Habit(apart=RUNS_APART)
