"""A call's record in the ledger, for people."""

from datetime import UTC, datetime

from goondan_tasks.ledger.record import CallRecord


def outcome_of(record: CallRecord) -> str:
    """Return ``ok`` or ``error`` of a call that is done, else its status."""
    return record.outcome if record.status == "done" and record.outcome else record.status


def duration_of(record: CallRecord) -> str | None:
    """Return how long the call's last run took, from its claim on."""
    if record.claimed_at is None or record.finished_at is None:
        return None
    return f"{record.finished_at - record.claimed_at} ms"


def local_time(milliseconds: int) -> str:
    """Write a time as the clock on the wall shows it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
