"""Runs of calls, as a worker makes them."""

from goondan_tasks.contract.calls import Run, identity_of
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.messages import ToolCall, wall_clock
from goondan_tasks.ledger.record import Claim, Verdict
from workers.job import Job


def job_of(call: ToolCall) -> Job:
    """Return the first run of a call, as the current one of a handler."""
    return Job.of_claim(Claim(run_of(call), "", Verdict.RUN, 0.0), queue_of(call))


def run_of(call: ToolCall) -> Run:
    """Return the first run of a call."""
    return Run(identity_of(call), call, "worker@here", 1, wall_clock(), wall_clock)
