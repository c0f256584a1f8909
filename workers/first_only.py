"""A call has one result: of all that are offered, the first one counts."""

import threading
from collections.abc import Callable

from goondan_tasks.messages import ToolCallResult


class FirstOnly:
    """Passes on the first result it gets and drops the others."""

    def __init__(self, receiver: Callable[[ToolCallResult], None]) -> None:
        self._receiver = receiver
        self._taken = threading.Lock()

    def __call__(self, result: ToolCallResult) -> None:
        if self._taken.acquire(blocking=False):
            self._receiver(result)
