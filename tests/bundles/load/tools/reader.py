"""Watch from inside whether two threads ever use the connection of the worker's lead at once."""

import threading
from collections.abc import Callable
from typing import Any

from broker_config.queue_reader import QueueReader
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler
from workers.plan import SlowToolDetector
from workers.pool.lead import Lead

#: what uses the connection
USES = ("post", "send", "settle", "reserve", "close")


class Watch:
    """What has been seen since the worker was told to look."""

    def __init__(self) -> None:
        self._in_use = threading.RLock()
        self.uses = 0
        self.overlaps = 0
        self.takeovers = 0
        self.threads: set[int] = set()

    def guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Count a use, and whether another thread is in the midst of one."""

        def use(*args: Any, **options: Any) -> Any:
            is_alone = self._in_use.acquire(blocking=False)
            self.uses += 1
            self.overlaps += not is_alone
            self.threads.add(threading.get_ident())
            try:
                return method(*args, **options)
            finally:
                if is_alone:
                    self._in_use.release()

        return use

    def counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Count the takeovers."""

        def take_over(*args: Any) -> Any:
            self.takeovers += 1
            return method(*args)

        return take_over


seen = Watch()


def look(ctx: ToolContext, input: JsonObject) -> None:
    for name in USES:
        setattr(QueueReader, name, seen.guarded(getattr(QueueReader, name)))
    setattr(Lead, "_take_over", seen.counted(Lead._take_over))
    # no tool is known to last then: each call is begun by the thread that leads
    for name in ("note_slow", "learn"):
        setattr(SlowToolDetector, name, lambda *_: None)


def tell(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return {
        "uses": seen.uses,
        "overlaps": seen.overlaps,
        "takeovers": seen.takeovers,
        "threads": len(seen.threads),
    }


handlers: dict[str, ToolHandler] = {"look": look, "tell": tell}
