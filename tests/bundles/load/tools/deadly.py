"""Kill the worker process from inside: at once, or at a moment that no signal from outside can meet."""

import os
import signal
import time
from typing import Any

from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.contract.logs import CallLog
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler

#: the moment -> the method that the worker is about to call then
MOMENTS: dict[str, tuple[type, str]] = {
    "between end and result": (Ledger, "finish_many"),
    "after the result": (CallLog, "write"),
}


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def poison(ctx: ToolContext, input: JsonObject) -> None:
    line = f"start {input['number']} {os.getpid()} {time.time():.6f}\n"
    file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    die()


def arm(ctx: ToolContext, input: JsonObject) -> None:
    """Die when that method is called for another call than this one."""
    owner, name = MOMENTS[input["moment"]]
    original = getattr(owner, name)
    mine = True

    def armed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal mine
        if mine:
            mine = False
            return original(self, *args, **kwargs)
        return die()

    setattr(owner, name, armed)


handlers: dict[str, ToolHandler] = {"poison": poison, "arm": arm}
