"""A result as it stands in Redis, and as it is told to whoever waits for it."""

from goondan_tasks.calls import Run
from goondan_tasks.messages import iso_time

#: a notification beyond this carries the id alone, and the waiter reads the result itself
INLINE_RESULT_BYTES = 16_384


def notification(run: Run, wire: bytes) -> bytes:
    """Write what is published: the call's id, and behind a space its result as JSON, unless that is large."""
    return run.id.encode() + (b" " + wire if len(wire) <= INLINE_RESULT_BYTES else b"")


def celery_record(run: Run, wire: bytes) -> bytes:
    """Write what ``AsyncResult.get()`` reads (celery/backends/base.py ``_get_result_meta``)."""
    date_done = iso_time(run.clock())
    return (
        b'{"task_id":"%b","status":"SUCCESS","traceback":null,"children":[],"date_done":"%b","result":%b}'
        % (run.id.encode(), date_done.encode(), wire)
    )
