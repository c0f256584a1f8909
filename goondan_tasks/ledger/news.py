"""How a result is told: what Celery's clients read, and what goes to the producer that waits."""

from goondan_tasks.messages import iso_time
from goondan_tasks.run import Run

#: a notification beyond this carries the id alone, and the waiter reads the result itself
INLINE_RESULT_BYTES = 16_384


def notification(run: Run, wire: bytes) -> bytes:
    """Return what is published for a producer: the call's id, and its result's JSON unless that is large."""
    return run.id.encode() + (b" " + wire if len(wire) <= INLINE_RESULT_BYTES else b"")


def celery_record(run: Run, wire: bytes) -> bytes:
    """Write what ``AsyncResult.get()`` reads (celery/backends/base.py ``_get_result_meta``)."""
    date_done = iso_time(run.clock())
    return (
        b'{"task_id":"%b","status":"SUCCESS","traceback":null,"children":[],"date_done":"%b","result":%b}'
        % (run.id.encode(), date_done.encode(), wire)
    )
