"""Programs that are plain Celery: their connections are closed at the end, not by the garbage collector.

``Celery.close`` only forgets its pools. What the garbage collector finds then may be a socket before the
connection that would have closed it: a warning, in whatever test happens to run.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from celery import Celery
from kombu import pools


@contextmanager
def plain_celery(redis_url: str, **options: Any) -> Iterator[Celery]:
    """Make an app whose broker and results are in this Redis; ``options`` are those of :class:`Celery`."""
    with Celery(broker=redis_url, backend=redis_url, **options) as app:
        try:
            yield app
        finally:
            close_connections(app)


def close_connections(app: Celery) -> None:
    """Close what an app has opened to send calls and to wait for results."""
    gc.collect()  # an AsyncResult talks to Redis when it is collected
    backend = cast(Any, app.backend)
    backend.result_consumer.stop()
    backend.result_consumer._pubsub = None  # so that a result that is collected later opens no connection
    backend.client.connection_pool.disconnect()
    broker = app.connection_for_write()
    for group in (pools.producers, pools.connections):  # all apps of the process share them, by their broker
        group[broker].force_close_all()
        del group[broker]
