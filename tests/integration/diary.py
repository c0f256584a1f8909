"""What the tools of the bundle ``limits`` write down: when each run began and ended."""

from itertools import accumulate
from pathlib import Path
from typing import Any

BUNDLE = Path(__file__).parent.parent / "bundles" / "limits"


class Diary:
    """What the handlers wrote down, and the gate that lets them end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "diary"
        self.gate = folder / "gate"

    def call(self, tool: str, name: str, *, agent: str = "clerk", **fields: Any) -> dict[str, Any]:
        """Return a call that writes into this diary; fields are those of the call or its arguments."""
        wire = {"instanceKey", "deadline", "idempotencyKey", "toolCallId"}
        args = {"name": name, "diary": str(self.path), **{k: v for k, v in fields.items() if k not in wire}}
        own = {k: v for k, v in fields.items() if k in wire}
        return {"agentName": agent, "toolName": tool, "args": args, **own}

    def rows(self) -> list[tuple[str, str, float]]:
        if not self.path.exists():
            return []
        rows = (line.split() for line in self.path.read_text("ascii").splitlines())
        return [(word, name, float(at)) for word, name, at in rows]

    def started(self) -> list[str]:
        return [name for word, name, _ in self.rows() if word == "start"]

    def most_at_once(self) -> int:
        steps = {"start": 1, "end": -1}
        return max(accumulate(steps[word] for word, _, _ in self.rows()))
