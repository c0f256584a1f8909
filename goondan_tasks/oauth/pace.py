"""How often something is tried that has not succeeded yet."""

import time
from dataclasses import dataclass, field

#: however often it failed, it is tried again after so long
_LONGEST_SECONDS = 60.0


@dataclass(slots=True)
class Pace:
    """When to try again, and how many seconds to wait between; the first time is one wait away."""

    interval: float
    #: by ``time.monotonic()``
    due: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to wait."""
        self.wait()

    @property
    def is_due(self) -> bool:
        """Whether the time has come."""
        return time.monotonic() >= self.due

    def wait(self) -> None:
        """Let the interval pass before the next try."""
        self.due = time.monotonic() + self.interval

    def slow_down(self) -> None:
        """Wait twice as long between, but for no longer than a minute."""
        self.interval = max(self.interval, min(2 * self.interval, _LONGEST_SECONDS))
