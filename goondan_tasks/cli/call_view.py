"""A call's record in the ledger, for people."""

from datetime import UTC, datetime

from goondan_tasks.cli.output import Output
from goondan_tasks.ledger.record import CallRecord


def outcome_of(record: CallRecord) -> str:
    """Return ``ok`` or ``error`` of a call that is done, else its status."""
    return record.outcome if record.status == "done" and record.outcome else record.status


def duration_of(record: CallRecord) -> str | None:
    """Return how long the call's last run took, from its claim on."""
    if record.claimed_at is None or record.finished_at is None:
        return None
    return duration_text((record.finished_at - record.claimed_at) / 1000)


def duration_text(seconds: float) -> str:
    """Write a duration in the unit that fits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1000:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 60_000 else f"{seconds / 3600:.1f} h"


def local_time(milliseconds: int) -> str:
    """Write a time as the clock on the wall shows it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def listed_time(milliseconds: int, output: Output) -> str:
    """Write a time for a table: where the screen is narrow, without its year."""
    return local_time(milliseconds).partition("-")[2] if output.is_narrow else local_time(milliseconds)
