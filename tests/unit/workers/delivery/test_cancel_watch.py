"""Which calls a worker asks about, and who is told."""

import gc
import time
import weakref
from collections.abc import Callable
from typing import cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from tests.answered import Answered
from tests.waiting import wait_until
from workers.concurrency.watchdog import Watchdog
from workers.delivery.cancel_watch import CLEAN_UP_SECONDS, CancelWatch


class MarkedCalls:
    """Stands for the ledger: these calls are cancelled."""

    redis = None

    def __init__(self, *call_ids: str) -> None:
        self.call_ids = set(call_ids)
        self.asked: list[list[str]] = []
        self.failures = 0

    def cancelled_ids(self, call_ids: list[str]) -> Answered[set[str]]:
        return Answered(lambda: self._answer(call_ids))

    def _answer(self, call_ids: list[str]) -> set[str]:
        self.asked.append(call_ids)
        if self.failures:
            self.failures -= 1
            raise RedisConnectionError("away")
        return self.call_ids & set(call_ids)


def a_claim(call_id: str, age_seconds: float = 1.0) -> Claim:
    run = Run(call_id, new_call("coder", "t__e", {}, {}), "w1", 1, 0, lambda: 0.0)
    return Claim(run, f"token-{call_id}", Verdict.RUN, time.monotonic() - age_seconds)


class Alarms:
    """Stands for the watchdog."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], object]]] = []

    def watch(self, seconds: float, alarm: Callable[[], object]) -> None:
        self.set.append((seconds, alarm))


def a_watch(ledger: MarkedCalls, alarms: Alarms | None = None) -> CancelWatch:
    return CancelWatch(cast(Ledger, ledger), cast(Watchdog, alarms or Alarms()))


def abandon() -> None: ...


def test_handler_that_is_cancelled_is_abandoned_after_while() -> None:
    alarms = Alarms()
    watch = a_watch(MarkedCalls("b"), alarms)
    watch.hold(a_claim("a"), abandon)
    watch.hold(a_claim("b"), abandon)
    watch.look()
    watch.look()
    assert alarms.set == [(CLEAN_UP_SECONDS, abandon)]


def test_only_runs_of_cancelled_calls_are_cancelled() -> None:
    ledger = MarkedCalls("b")
    watch = a_watch(ledger)
    goes_on, ends = watch.hold(a_claim("a"), abandon), watch.hold(a_claim("b"), abandon)
    watch.look()
    assert (goes_on.is_set(), ends.is_set()) == (False, True)
    assert ends.error is not None
    assert ends.error.code == "E_TOOL_CANCELLED"
    assert ledger.asked == [["a", "b"]]


def test_run_losing_claim_is_cancelled_then_abandoned() -> None:
    alarms = Alarms()
    watch = a_watch(MarkedCalls(), alarms)
    goes_on, ends = watch.hold(a_claim("a"), abandon), watch.hold(a_claim("b"), abandon)
    watch.end_lost(a_claim("b"))
    watch.end_lost(a_claim("ended before"))
    assert not goes_on.is_set()
    assert ends.error is not None
    assert ends.error.message == "The claim was lost while the handler ran."
    assert alarms.set == [(CLEAN_UP_SECONDS, abandon)]


def test_calls_just_begun_are_not_asked_about() -> None:
    ledger = MarkedCalls("a")
    watch = a_watch(ledger)
    watch.hold(a_claim("a", age_seconds=0), abandon)
    watch.look()
    assert ledger.asked == []


def test_run_that_has_ended_is_not_asked_about() -> None:
    ledger = MarkedCalls("a")
    watch, claim = a_watch(ledger), a_claim("a")
    cancellation = watch.hold(claim, abandon)
    assert watch.cancellation(claim) is cancellation
    watch.drop(claim)
    watch.look()
    assert ledger.asked == []
    assert watch.cancellation(claim) is None


def test_two_runs_of_one_call_are_both_cancelled() -> None:
    watch = a_watch(MarkedCalls("a"))
    lost = Claim(a_claim("a").run, "an older token", Verdict.RUN)
    cancellations = [watch.hold(claim, abandon) for claim in (lost, a_claim("a"))]
    watch.look()
    assert all(cancellation.is_set() for cancellation in cancellations)


@pytest.mark.parametrize("failures", [0, 2])
def test_thread_keeps_looking_despite_redis_failures(failures: int) -> None:
    ledger = MarkedCalls("a")
    ledger.failures = failures
    watch = a_watch(ledger)
    cancellation = watch.hold(a_claim("a"), abandon)
    watch.start()
    wait_until(cancellation.is_set)
    watch.stop()


def _hold_in_a_circle(watch: CancelWatch, claim: Claim) -> "weakref.ref[Callable[[], None]]":
    """Hold a claim as runs do: what is to be told leads back to where it is kept."""

    def abandon_it() -> None:
        cancellation.is_set()

    cancellation = watch.hold(claim, abandon_it)
    cancellation.on_cancel(abandon_it)
    return weakref.ref(abandon_it)


def test_ended_run_is_freed_without_garbage_collector() -> None:
    watch, claim = a_watch(MarkedCalls()), a_claim("a")
    gc.disable()
    try:
        kept = _hold_in_a_circle(watch, claim)
        assert kept() is not None
        watch.drop(claim)
        assert kept() is None
    finally:
        gc.enable()
