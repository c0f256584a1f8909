"""The little of a result that Flower and the log show."""

from goondan_tasks.messages import ToolCallResult

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
