"""A call has one result: of all that are offered, the first one counts."""

import threading
from collections.abc import Callable

from goondan_tasks.messages import ToolCallResult


class FirstOnly:
    """Passes on the first result it gets and drops the others."""

    def __init__(self, receiver: Callable[[ToolCallResult], None]) -> None:
        self._receiver = receiver
        self._taken = threading.Lock()

    def __call__(self, result: ToolCallResult) -> bool:
        """Pass ``result`` on if it is the first; say whether it was."""
        is_first = self._taken.acquire(blocking=False)
        if is_first:
            self._receiver(result)
        return is_first
