"""Waiting for what happens soon, with a deadline."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], object], seconds: float = 60, *, show: Callable[[], object] | None = None
) -> None:
    """Return as soon as ``condition()`` is true; fail the test if it is not within ``seconds``.

    ``show`` returns what the failure shall tell.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {show() if show else condition}"
        time.sleep(POLL_SECONDS)
