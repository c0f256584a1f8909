"""Celery's task events in batches."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from workers.pool.pool import CallPool
from workers.pool.task_events import MOST_EVENTS, TaskEvents


class Timer:
    """Stands for the timer of Celery's main loop."""

    def __init__(self) -> None:
        self.repeated: list[Callable[[], object]] = []
        self.cancelled = 0

    def call_repeatedly(self, _seconds: float, callback: Callable[[], object]) -> "Timer":
        self.repeated.append(callback)
        return self

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a consumer as Celery makes it, with a dispatcher that keeps what it would publish."""
    app = Celery("events", broker="memory://", set_as_current=False)
    published: list[Any] = []
    woken: list[None] = []
    dispatcher = app.events.Dispatcher(
        app.connection_for_write(),
        hostname="w1",
        buffer_group=["task"],
        on_send_buffered=lambda: woken.append(None),
    )
    monkeypatch.setattr(dispatcher, "_publish", lambda events, *_, **__: published.append(events))
    pool = CallPool(limit=1)
    return SimpleNamespace(
        pool=pool, timer=Timer(), event_dispatcher=dispatcher, published=published, woken=woken
    )


def started(consumer: Any) -> TaskEvents:
    step = TaskEvents(consumer)
    step.start(consumer)
    return step


def test_events_wait_for_the_timer_and_wake_nobody(consumer: Any) -> None:
    started(consumer)
    for number in range(MOST_EVENTS - 1):
        consumer.event_dispatcher.send("task-started", uuid=str(number))
    assert (consumer.published, consumer.woken) == ([], [])
    [flush] = consumer.timer.repeated
    flush()
    flush()
    [events] = consumer.published
    assert [event["uuid"] for event in events] == [str(number) for number in range(MOST_EVENTS - 1)]


def test_many_events_do_not_wait(consumer: Any) -> None:
    started(consumer)
    for number in range(MOST_EVENTS):
        consumer.event_dispatcher.send("task-started", uuid=str(number))
    assert [len(events) for events in consumer.published] == [MOST_EVENTS]


def test_what_is_left_is_sent_when_the_worker_stops_and_only_once(consumer: Any) -> None:
    step = started(consumer)
    consumer.event_dispatcher.send("task-started", uuid="1")
    step.stop(consumer)
    step.stop(consumer)
    assert [len(events) for events in consumer.published] == [1]
    assert consumer.timer.cancelled == 1


def test_pools_of_celerys_own_keep_celerys_way() -> None:
    step = TaskEvents(SimpleNamespace(pool=object()))
    assert not step.include_if(cast(Any, SimpleNamespace(pool=object())))
