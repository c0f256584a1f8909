"""Runs of calls, as a worker makes them."""

from goondan_tasks.contract.calls import Run, identity_of
from goondan_tasks.contract.messages import ToolCall, wall_clock


def run_of(call: ToolCall) -> Run:
    """Return the first run of a call."""
    return Run(identity_of(call), call, "worker@here", 1, wall_clock(), wall_clock)
