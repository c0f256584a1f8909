"""Celery's task events in batches."""

import base64
import json
from collections import Counter
from collections.abc import Callable
from time import monotonic, time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.worker import state
from fakeredis import FakeRedis
from redis.exceptions import ReadOnlyError

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCallError, wall_clock
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.submission import call_json
from workers.job import Job
from workers.pool import consumer as consumers
from workers.pool.monitoring import LONGEST_NAME, MOST_CALLS, MOST_NAMES, TaskEvents, count
from workers.pool.pool import CallPool


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


class Broker(FakeRedis):
    """Keeps the events that are published as kombu publishes them, and may refuse some."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.refusals: list[Exception] = []

    def publish(self, channel: Any, message: Any, **_: Any) -> int:
        if self.refusals:
            raise self.refusals.pop()
        sent = json.loads(message)
        assert sent["content-type"] == "application/json"
        events = json.loads(base64.b64decode(sent["body"]))
        is_group = isinstance(events, list)
        self.events += events if is_group else [events]
        key = "task.multi" if is_group else events["type"].replace("-", ".")  # as Celery's receivers select
        assert (channel, sent["properties"]["delivery_info"]["routing_key"]) == (f"/0.celeryev/{key}", key)
        return 1


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a consumer as Celery makes it."""
    app = Celery("events", broker="memory://", set_as_current=False)
    app.events.dispatcher_cls = "workers.pool.consumer:EventDispatcher"
    broker = Broker()
    runtime = SimpleNamespace(monitors=Monitors(broker, Settings()))
    monkeypatch.setattr(consumers, "process_runtime", lambda: runtime)
    pool = CallPool(limit=1)
    pool._runtime = cast(Any, runtime)
    dispatcher = app.events.Dispatcher(app.connection_for_write(), hostname="w1", buffer_group=["task"])
    return SimpleNamespace(pool=pool, timer=Timer(), event_dispatcher=dispatcher, broker=broker)


def started(consumer: Any) -> TaskEvents:
    step = TaskEvents(consumer)
    step.start(consumer)
    return step


def test_leftover_events_are_sent_once_at_stop(consumer: Any) -> None:
    step = started(consumer)
    consumer.pool.events.add(consumer.event_dispatcher, [ended_call()])
    step.stop(consumer)
    step.stop(consumer)
    assert len(consumer.broker.events) == 3
    assert consumer.timer.cancelled == 1


def test_worker_event_is_sent_once_over_workers_client(consumer: Any) -> None:
    consumer.broker.refusals = [ReadOnlyError("READONLY")]
    for active in (1, 2):
        consumer.event_dispatcher.send("worker-heartbeat", active=active, retry=True)
    [event] = consumer.broker.events
    assert event.items() >= {"type": "worker-heartbeat", "hostname": "w1", "active": 2}.items()
    consumer.event_dispatcher.send("task-custom", uuid="1")
    consumer.event_dispatcher.flush()
    assert [event["type"] for event in consumer.broker.events] == ["worker-heartbeat", "task-custom"]
    assert not consumer.event_dispatcher.connection.connected


def ended_call(failure: ToolCallError | None = None, **names: Any) -> Job:
    call = new_call("coder", "calc__add", {"text": "ü \u2028", "password": "p4ss"}, names)
    text = call_json(call, serializer.encode(call.args))
    answer = (b"run", 1, 0, 1_700_000_000_000, None, None, text, b"", b"id-1")
    job = Job("agent.coder", "token", answer, asked_at=monotonic(), clock=wall_clock, worker="w1")
    job.begun_at, job.duration_ms, job.output = monotonic(), 1.5, 'a "quoted" text'
    job.output_text = serializer.encode(job.output)
    assert job.classify()
    job.error = failure
    return job


def test_plain_call_events_match_celerys_own_events(consumer: Any) -> None:
    broker = consumer.broker
    consumer.event_dispatcher.send("worker-heartbeat", uuid="celerys")
    [celerys] = broker.events
    broker.events.clear()
    started(consumer)
    failure = ToolCallError(code="E_ODD", name="Odd", message="no")
    jobs = [ended_call(), ended_call(failure, root_id="root", parent_id="parent")]
    consumer.pool.events.add(consumer.event_dispatcher, jobs)
    [flush] = consumer.timer.repeated
    flush()
    flush()
    begun = ["task-received", "task-started"]
    assert [event["type"] for event in broker.events] == [*begun, "task-succeeded", *begun, "task-failed"]
    assert all(event.items() >= {"hostname": "w1", "pid": celerys["pid"]}.items() for event in broker.events)
    assert all(event.keys() >= celerys.keys() for event in broker.events)
    received, _, succeeded = broker.events[:3]
    assert (received["uuid"], received["name"], received["parent_id"]) == ("id-1", "coder.calc__add", None)
    assert received["kwargs"] == 'default {"text":"ü \u2028","password":"***"}'
    assert (succeeded["result"], succeeded["runtime"]) == ('ok "a \\"quoted\\" text"', 0.0015)
    received, _, failed = broker.events[3:]
    assert (received["root_id"], received["parent_id"]) == ("root", "parent")
    assert (failed["exception"], failed["traceback"]) == ("E_ODD: no", "E_ODD: no")


def test_plain_call_that_is_refused_has_not_started(consumer: Any) -> None:
    broker = consumer.broker
    failure = ToolCallError(code="E_ODD", name="Odd", message="no")
    ended, since = ended_call(failure), time()
    ended.begun_at = ended.duration_ms = 0.0
    consumer.pool.events.add(consumer.event_dispatcher, [ended])
    consumer.pool.flush_events(consumer.event_dispatcher)
    assert [event["type"] for event in broker.events] == ["task-received", "task-failed"]
    assert broker.events[1]["timestamp"] >= since


def test_events_wait_within_limit_while_redis_refuses(consumer: Any) -> None:
    broker = consumer.broker
    broker.refusals = [ReadOnlyError("READONLY"), ConnectionResetError()]
    for _ in range(MOST_CALLS + 10):
        consumer.pool.events.add(consumer.event_dispatcher, [ended_call()])
    for _ in range(2):
        consumer.pool.flush_events(consumer.event_dispatcher)
        assert broker.events == []
    consumer.pool.flush_events(consumer.event_dispatcher)
    assert len(broker.events) == 3 * (MOST_CALLS + 1)


def test_no_event_is_written_with_monitoring_disabled(consumer: Any) -> None:
    broker = consumer.broker
    consumer.event_dispatcher.enabled = False
    consumer.pool.events.add(consumer.event_dispatcher, [ended_call()])
    consumer.pool.flush_events(consumer.event_dispatcher)
    assert broker.events == []


def test_model_invented_names_are_counted_within_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(state, "total_count", counts)
    for number in range(MOST_NAMES + 5):
        count(f"made__up-{number}", "goondan.tool_call")
    count("made__up-7", "goondan.tool_call")
    count("x" * (LONGEST_NAME + 1), "goondan.tool_call")
    assert len(counts) == MOST_NAMES + 1
    assert (counts["made__up-7"], counts["goondan.tool_call"]) == (2, 6)
