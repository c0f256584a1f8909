"""Runs of calls, as a worker makes them."""

from goondan_tasks.contract.calls import Run, identity_of
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.messages import ToolCall, wall_clock
from goondan_tasks.history import StepRecord
from goondan_tasks.ledger.record import Claim, Verdict
from workers.job import Job
from workers.turns.steps import Steps


def job_of(call: ToolCall) -> Job:
    """Return the first run of a call, as the current one of a handler."""
    return Job.of_claim(Claim(run_of(call), "", Verdict.RUN, 0.0), queue_of(call))


def run_of(call: ToolCall) -> Run:
    """Return the first run of a call."""
    return Run(identity_of(call), call, "worker@here", 1, wall_clock(), wall_clock)


def open_step(steps: Steps, call: ToolCall) -> StepRecord:
    """Open a Step for a producer, and keep it as if the result of its call was stored."""
    opened = steps.open(job_of(call))
    steps.store.run(opened.keeping)
    opened.note_kept()
    return opened.record
