"""What a signal begins, without a worker around it."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.platforms import EX_OK
from celery.worker import state

from goondan_tasks.oauth.manager import LONGEST_SECONDS, RefreshesInFlight
from goondan_tasks.oauth.records import OAuthError
from workers.pool import drain as drain_module
from workers.pool.drain import (
    ASKED_TWICE_SECONDS,
    LATE_SHUTDOWN_SECONDS,
    LATEST_SECONDS,
    SHUTDOWN_SECONDS,
    TURN_SECONDS,
    Drain,
)
from workers.pool.refusal import EXIT_CONFIGURATION
from workers.pool.shutdown import ask_to_drain

GRACE_SECONDS = 60.0


class Consumer:
    """What a drain needs of Celery's consumer; its main loop turns when it is told to."""

    def __init__(self) -> None:
        self.hostname = "w1"
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from={"q": None})))
        self.pool = self
        self.hub = self.timer = self
        self.is_draining = False
        self._soon: list[Callable[[], object]] = []
        self._looks: list[Callable[[], object]] = []

    @property
    def is_busy(self) -> bool:
        return bool(state.reserved_requests)

    def return_backlog(self) -> None: ...

    def drain(self) -> None:
        self.is_draining = True

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def call_repeatedly(self, _seconds: float, callback: Callable[[], object]) -> None:
        self._looks.append(callback)

    def cancel_task_queue(self, queue: str) -> None:
        del self.app.amqp.queues.consume_from[queue]

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback in [*self._looks, *soon]:
            callback()


class Call:
    """What Celery counts as reserved."""

    id = "call-1"


class Clock:
    """The time of the drain, and the latest end of the process."""

    def __init__(self) -> None:
        self.now = monotonic()
        self.end = math.inf

    def __call__(self) -> float:
        return self.now

    def start(self) -> None: ...

    def within(self, seconds: float) -> None:
        self.end = min(self.end, self.now + seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(drain_module, "monotonic", clock)
    monkeypatch.setattr(drain_module, "HardEnd", lambda: clock)
    return clock


@pytest.fixture
def refreshes() -> RefreshesInFlight:
    return RefreshesInFlight()


@pytest.fixture
def consumer(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, refreshes: RefreshesInFlight
) -> Iterator[Consumer]:
    runtime = SimpleNamespace(
        settings=SimpleNamespace(grace_seconds=GRACE_SECONDS),
        delivery=SimpleNamespace(
            result_writer=SimpleNamespace(awaits_confirmation=False, abandon=lambda: None)
        ),
        revisions=SimpleNamespace(stop=lambda seconds: None),
        agent_registry=SimpleNamespace(remove_worker=lambda name: None),
        standby=SimpleNamespace(end=lambda: None),
        refreshes=refreshes,
    )
    monkeypatch.setattr(drain_module, "process_runtime", lambda: runtime)
    yield Consumer()
    state.should_stop = state.should_terminate = None
    state.reserved_requests.clear()


def signalled(consumer: Consumer, *, is_heard: bool = True) -> Drain:
    drain = Drain(cast(Any, consumer))
    drain._listener.start()
    drain._on_signal(signal.SIGTERM, None)
    drain._wait()  # which its thread does
    if is_heard:
        heard(drain)
    return drain


def test_idle_worker_stops_at_next_loop_turn(consumer: Consumer) -> None:
    signalled(consumer)
    assert state.should_stop is None

    consumer.turn()

    assert state.should_stop == EX_OK
    assert not consumer.app.amqp.queues.consume_from


def heard(drain: Drain) -> None:
    """Wait until extensions have handled that the worker stops."""
    drain._listener.join(10)


def listen_until(go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let extensions hear of the stop until the event is set."""
    revisions = vars(drain_module)["process_runtime"]().revisions
    monkeypatch.setattr(revisions, "stop", lambda seconds: go_on.wait(10))


def test_calls_return_while_worker_awaits_stopping_extensions(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    listen_until(go_on, monkeypatch)
    drain = signalled(consumer, is_heard=False)
    consumer.turn()
    assert consumer.app.amqp.queues.consume_from == {}
    consumer.turn()
    assert state.should_stop is None
    go_on.set()
    heard(drain)
    consumer.turn()
    assert state.should_stop == EX_OK


def test_hanging_extension_is_awaited_within_limit(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "LISTEN_SECONDS", 0.0)
    go_on = threading.Event()
    listen_until(go_on, monkeypatch)
    drain = signalled(consumer, is_heard=False)
    consumer.turn()
    assert state.should_stop == EX_OK
    go_on.set()
    heard(drain)


def test_call_being_delivered_at_signal_is_awaited(consumer: Consumer) -> None:
    call = Call()
    signalled(consumer)
    state.reserved_requests.add(call)  # its trip had begun before

    consumer.turn()
    consumer.turn()
    assert state.should_stop is None
    state.reserved_requests.discard(call)
    consumer.turn()
    assert state.should_stop == EX_OK


def test_no_call_begins_after_signal(consumer: Consumer) -> None:
    Drain(cast(Any, consumer))._on_signal(signal.SIGTERM, None)
    assert consumer.is_draining
    assert state.should_stop is None


def test_signal_awaits_no_lock_of_interrupted_code(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: object, **__: object) -> None:
        raise AssertionError("the main thread may hold this lock")

    monkeypatch.setattr(consumer, "call_soon", held)
    monkeypatch.setattr(drain_module, "process_runtime", held)
    monkeypatch.setattr(drain_module.logger, "info", held)
    drain = Drain(cast(Any, consumer))
    drain._on_signal(signal.SIGTERM, None)
    drain._on_signal(signal.SIGHUP, None)  # as a terminal's end may send it twice
    assert state.should_terminate is None


def test_stuck_loop_worker_stops_and_takes_no_calls(consumer: Consumer, clock: Clock) -> None:
    drain = signalled(consumer)
    assert not drain._check()
    assert state.should_stop is None

    clock.now += TURN_SECONDS
    drain._check()

    assert state.should_stop == EX_OK
    assert consumer.is_draining


def test_slow_worker_with_turning_loop_keeps_running(consumer: Consumer, clock: Clock) -> None:
    call, drain = Call(), signalled(consumer)
    state.reserved_requests.add(call)
    consumer.turn()

    clock.now += TURN_SECONDS
    drain._check()
    assert state.should_stop is None
    clock.now += GRACE_SECONDS + LATEST_SECONDS
    assert drain._check()
    assert state.should_stop == EX_OK


def test_hanging_celery_worker_ends_after_grace_period(consumer: Consumer, clock: Clock) -> None:
    call, began, drain = Call(), clock.now, signalled(consumer)
    state.reserved_requests.add(call)
    consumer.turn()
    drain._check()
    assert clock.end == math.inf

    clock.now += GRACE_SECONDS + LATEST_SECONDS
    drain._check()

    assert clock.end == began + GRACE_SECONDS + LATEST_SECONDS + LATE_SHUTDOWN_SECONDS


def test_idle_hanging_celery_worker_ends_before_grace_period(consumer: Consumer, clock: Clock) -> None:
    began, drain = clock.now, signalled(consumer)
    consumer.turn()
    consumer.turn()

    drain._check()

    assert clock.end == began + SHUTDOWN_SECONDS


def test_worker_that_is_asked_twice_is_ended_soon(consumer: Consumer, clock: Clock) -> None:
    drain = signalled(consumer)

    drain._on_signal(signal.SIGTERM, None)

    assert clock.end == clock.now + ASKED_TWICE_SECONDS


def test_drain_starts_no_thread(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain(cast(Any, consumer))
    drain._listener.start()
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    drain._on_signal(signal.SIGTERM, None)
    drain._wait()
    heard(drain)
    consumer.turn()

    assert state.should_stop == EX_OK


def test_worker_without_drain_thread_does_not_begin(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    with pytest.raises(SystemExit) as refused:
        Drain(cast(Any, consumer)).start(consumer)

    assert refused.value.code == EXIT_CONFIGURATION
    assert "can't start new thread" in str(refused.value.__cause__)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")  # as Python says at the limit of threads


@pytest.mark.parametrize("passed_seconds", [0, GRACE_SECONDS + LATEST_SECONDS])
def test_refresh_in_flight_is_awaited_beyond_grace(
    consumer: Consumer, clock: Clock, refreshes: RefreshesInFlight, passed_seconds: float
) -> None:
    with refreshes.one():
        drain = signalled(consumer)
        clock.now += passed_seconds
        consumer.turn()
        consumer.turn()
        drain._check()
        assert state.should_stop is None
        with pytest.raises(OAuthError, match="stopping"), refreshes.one():
            pass
    consumer.turn()
    assert state.should_stop == EX_OK


def test_stuck_loop_worker_awaits_refresh_in_flight(
    consumer: Consumer, clock: Clock, refreshes: RefreshesInFlight
) -> None:
    drain = signalled(consumer)
    with refreshes.one():
        clock.now += TURN_SECONDS
        drain._check()
        assert consumer.is_draining
        assert state.should_stop is None
    drain._check()
    assert state.should_stop == EX_OK


def test_refresh_beyond_own_limit_is_not_awaited(
    consumer: Consumer, clock: Clock, refreshes: RefreshesInFlight
) -> None:
    with refreshes.one():
        signalled(consumer)
        clock.now += GRACE_SECONDS + LONGEST_SECONDS
        consumer.turn()
        assert state.should_stop == EX_OK


def test_drain_that_is_asked_for_twice_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: sent.append(number))
    pool = SimpleNamespace(is_draining=False)
    ask_to_drain(pool)
    pool.is_draining = True  # as the signal's handler says at once
    ask_to_drain(pool)
    assert sent == [signal.SIGTERM]
