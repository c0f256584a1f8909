"""The little of a result that Flower and the log show."""

from goondan_tasks.messages import ToolCallResult
from workers.job import Job

SUMMARY_LENGTH = 200

#: what stands in a result's place when a message turned out to need no run
NOT_RUN = "not run here"


def summary(result: ToolCallResult | None) -> str:
    """Return status, error code and the beginning of the output or message."""
    if result is None:
        return NOT_RUN
    if result.error is not None:
        return f"{result.status} {result.error.code} {result.error.message}"[:SUMMARY_LENGTH]
    return f"{result.status} {result.output!r}"[:SUMMARY_LENGTH]


def summary_of(job: Job) -> str:
    """Return the same of a plain call that ended well."""
    return f"ok {job.output!r}"[:SUMMARY_LENGTH]
