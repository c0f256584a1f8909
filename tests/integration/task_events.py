"""Celery's events about calls, as Flower receives them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from tests.waiting import wait_until

PATIENCE = 60

Heard = list[dict[str, Any]]


@contextmanager
def monitor(redis_url: str) -> Iterator[Heard]:
    """Listen as Flower does, from when the first heartbeat of a worker was heard."""
    heard: Heard = []
    app = Celery("monitor", broker=redis_url, set_as_current=False)
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: bool(heard), PATIENCE)
            yield heard
        finally:
            receiver.should_stop = True
            thread.join(PATIENCE)
