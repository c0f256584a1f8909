"""One thing that was looked at, and what came of it."""

from dataclasses import dataclass
from typing import Literal

from goondan_tasks.messages import JsonObject

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and how to mend it unless it is ``ok``."""

    name: str
    level: Level
    message: str
    remedy: str | None = None

    def to_wire(self) -> JsonObject:
        """Return the check as ``goondan doctor --json`` prints it."""
        wire = {"name": self.name, "level": self.level, "message": self.message}
        return wire if self.remedy is None else {**wire, "remedy": self.remedy}
