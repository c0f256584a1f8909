"""Milliseconds since the epoch, by this machine's clock or by that of Redis."""

import time

from goondan_tasks.run import Clock


def wall_clock() -> float:
    """Return this machine's time in milliseconds; for what decides nothing."""
    return time.time() * 1000


def redis_clock(now: int) -> Clock:
    """Return a clock that goes on from ``now``, a time in ms that Redis has just given."""
    offset = now - time.monotonic() * 1000
    return lambda: offset + time.monotonic() * 1000
