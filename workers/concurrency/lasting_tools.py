"""Which tools are run on threads of their own, because their calls would keep the short ones waiting."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, thread_time

from goondan_tasks.messages import ToolCall
from workers.concurrency.threads import SHORT_SECONDS

#: a call that waits this long for something else than the processor had better wait beside others
IDLE_SECONDS = 0.001

#: how many of them in a row are no accident: a thread waits for the interpreter, too
SURE = 3


@dataclass(slots=True)
class Stopwatch:
    """Times one run on one thread."""

    wall: Callable[[], float] = monotonic
    processor: Callable[[], float] = thread_time
    _begun: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.wall(), self.processor()

    @property
    def lasted(self) -> bool:
        """Whether it has taken long by now."""
        return self.wall() - self._begun[0] > SHORT_SECONDS

    @property
    def idled(self) -> bool:
        """Whether it has waited by now, for a reply over the network, say."""
        wall, processor = self._begun
        return (self.wall() - wall) - (self.processor() - processor) > IDLE_SECONDS


class LastingTools:
    """Learns from each run whether the next ones of its tool are likely to last."""

    def __init__(self) -> None:
        self._suspicions: dict[tuple[str, str], int] = {}

    def has(self, call: ToolCall) -> bool:
        """Say whether a call's tool is one of them."""
        return self._suspicions.get((call.agent_name, call.tool_name), 0) >= SURE

    def learn(self, call: ToolCall, watch: Stopwatch) -> None:
        """Take note of a run that has just ended, on the thread that has run it."""
        tool = call.agent_name, call.tool_name
        if watch.lasted:
            self._suspicions[tool] = SURE
        elif watch.idled:
            self._suspicions[tool] = self._suspicions.get(tool, 0) + 1
        else:
            self._suspicions.pop(tool, None)
