"""Plain calls with async handlers, on a real event loop; Redis and the pool only take note."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import (
    GoondanError,
    ToolCancelledError,
    ToolOutcomeUnknownError,
    ToolTimeoutError,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Stored
from tests.unit.workers.results import results_of
from tests.waiting import wait_until
from workers.concurrency.event_loop import EventLoopThread, RunOnThread
from workers.concurrency.slots import Slots
from workers.concurrency.threads import DaemonThreads
from workers.concurrency.watchdog import Watchdog
from workers.executor import Mark
from workers.job import Job, JobState
from workers.outcome import FunctionOutcome
from workers.plan import Handle, Plan, SlowToolDetector
from workers.pool import loop_calls
from workers.pool.loop_calls import LoopCalls
from workers.results import result_of

_LEDGER = Ledger(fakeredis.FakeRedis(), Settings())
LIMIT = 300.0


def job_of(call_id: str) -> Job:
    text = serializer.encode(new_call("coder", "calc__add", {"number": call_id}, {}).to_wire())
    answer = (b"run", 1, 0, 1_700_000_000_000, None, None, text, b"", call_id.encode())
    job = Job("agent.coder", f"token-{call_id}", answer, asked_at=monotonic(), clock=lambda: 1.0, worker="w1")
    job.state, job.fresh_until = JobState.STARTED, monotonic() + 25
    return job


class Scene:
    """Everything around the loop's calls; ``handler`` takes the number of the call."""

    def __init__(
        self,
        handler: Callable[[str], Any],
        *,
        limit: float = LIMIT,
        has_retry: bool = False,
        is_blocking: bool = False,
    ) -> None:
        self.watchdog = Watchdog()
        self.watchdog.start()
        self.event_loop = EventLoopThread()
        self.event_loop.start()
        threads = DaemonThreads(self.event_loop.flush)
        threads.start()
        self.before_packet: Callable[[], object] = lambda: None
        self.slots = Slots(lambda: 100, lambda queued: None)
        #: what Redis was asked to store, and what it answers, or the error of the first packet
        self.packets: list[list[str]] = []
        #: the threads that have written packets, and those that have sent them at once
        self.writers: list[str] = []
        self.senders: list[str] = []
        self.answers: dict[str, int] = {}
        self.refuses: str | None = None
        self.noted: dict[str, str | None] = {}
        self.finished: dict[str, ToolCallResult] = {}
        self.detached: dict[str, ToolCallResult | None] = {}
        #: whether a drain would have found no call here while one was being detached
        self.was_idle = False
        #: whether the lead takes results along, and those that it was given
        self.lead_takes = False
        self.taken_along: list[list[str]] = []
        self.cancelled: list[str] = []
        self.confirmed: list[str] = []
        self.refusal: GoondanError | None = None
        retry = object() if has_retry else None
        bound = SimpleNamespace(
            tool=SimpleNamespace(spec=SimpleNamespace(error_message_limit=100)),
            export=SimpleNamespace(retry=retry, idempotency_key=None),
            is_v1=False,
            name="notes__add",
        )

        async def handle(context: object, arguments: Any) -> Any:
            return await handler(arguments["number"])

        def block(context: object, arguments: Any) -> Any:
            return handler(arguments["number"])

        tool: Any = SimpleNamespace(bound=bound, is_async=not is_blocking)
        self.plan = Plan(tool, block if is_blocking else handle, limit, SlowToolDetector(), (), self)  # type: ignore[arg-type]
        runtime: Any = SimpleNamespace(
            settings=Settings(lease_seconds=30),
            delivery=self,
            event_loop=self.event_loop,
        )
        self.ledger = _LEDGER
        self.writer = self
        self.result_writer = results_of(_LEDGER, self, self._note_ended, self._note_cancelled)
        pool: Any = self
        self.must_look = threading.Event()
        self.calls = LoopCalls(runtime, threads, self.slots, pool, self.must_look.set, self._send_along)

    def begins(self, *jobs: Job) -> None:
        for job in jobs:
            assert self.slots.take()
            self.calls.begin(job, self.plan)
        self.event_loop.flush()

    # the plans

    async def run_on_loop(
        self, job: Job, plan: Plan, handle: Handle, beside: RunOnThread, mark_again: Mark
    ) -> Any:
        return await handle(job.read()["args"])

    def plain_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> bytes | None:
        if outcome.error is None and outcome.get() == "fault":
            raise RuntimeError("ours")
        plain = outcome.error is None and outcome.get() != "not plain"
        return result_of(job, job.read(), '"plain"') if plain else None

    def general_result(self, job: Job, plan: Plan, outcome: FunctionOutcome[Any]) -> ToolCallResult:
        assert threading.current_thread().name != "goondan-event-loop"  # it may block
        error = (job.cancellation and job.cancellation.error) or outcome.error
        if error is None:
            return job.claim.run.ok(outcome.get(), job.started_at)
        failed = job.claim.run.ok(None, job.started_at)
        told = {"code": getattr(error, "code", "E_TOOL"), "name": type(error).__name__, "message": str(error)}
        return ToolCallResult.from_wire({**failed.to_wire(), "status": "error", "error": told})

    def wire(self, job: Job, *, limit_seconds: float) -> object: ...

    # the delivery

    def put_off(
        self,
        script_call: ScriptCall[Any],
        receiver: Callable[[Any], object],
        refused: Callable[[ResponseError], object],
        *,
        is_urgent: bool = False,
    ) -> None:
        self.before_packet()
        self.writers.append(threading.current_thread().name)
        ids = [key.rpartition(":")[2] for key in script_call.keys[1:]]
        self.packets.append(ids)
        if self.refuses in ids:
            refused(ResponseError("WRONGTYPE"))
        else:
            receiver([self.answers.get(one, 1_700_000_000_000) for one in ids])

    def flush(self) -> None:
        self.senders.append(threading.current_thread().name)

    # the pool

    def context(self, job: Job) -> object: ...

    def detach(self, job: Job, expire: Callable[[], None] | None = None) -> None:
        def end(result: ToolCallResult) -> None:
            self.detached[job.id] = result
            self.slots.leave(None)

        self.was_idle = self.calls.is_idle
        self.detached[job.id] = None
        job.ensure_cancellation()
        if expire is not None:
            job.limit_handler(lambda seconds: self.watchdog.watch(self.plan.limit_seconds - seconds, expire))
        job.end_detached = end

    def finish(self, job: Job, result: ToolCallResult) -> None:
        self.finished[job.id] = result

    def mark_again(self, job: Job) -> None:
        self.confirmed.append(job.id)
        if self.refusal is not None:
            raise self.refusal
        job.fresh_until += 25

    def _note_cancelled(self, job: Job) -> None:
        self.cancelled.append(job.id)

    def _note_ended(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.noted[job.id] = None if job.error is None else job.error.code

    # the lead

    def _send_along(self, jobs: Sequence[Job]) -> bool:
        if self.lead_takes:
            self.taken_along.append([job.id for job in jobs])
        return self.lead_takes

    # the test

    def comes_to_last(self, call_id: str) -> bool:
        self.calls.look()
        return call_id in self.detached


Make = Callable[..., Scene]


@pytest.fixture
def make() -> Iterator[Make]:
    scenes: list[Scene] = []

    def made(*args: Any, **options: Any) -> Scene:
        scenes.append(Scene(*args, **options))
        return scenes[-1]

    yield made
    for scene in scenes:
        scene.event_loop.stop()


async def at_once(number: str) -> str:
    return number


def test_calls_ending_together_share_packet_freeing_slots(make: Make) -> None:
    scene = make(at_once)
    jobs = [job_of(str(number)) for number in range(5)]

    scene.begins(*jobs)
    wait_until(lambda: len(scene.noted) == 5)

    assert scene.packets == [["0", "1", "2", "3", "4"]]
    wait_until(lambda: scene.slots.taken == 0)
    assert scene.calls.is_idle
    assert {job.state for job in jobs} == {JobState.ENDED}


@pytest.mark.parametrize(("most_bytes", "is_here"), [(65_536, True), (0, False)])
def test_only_small_results_are_sent_on_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch, most_bytes: int, is_here: bool
) -> None:
    monkeypatch.setattr(loop_calls, "MOST_SENT_BYTES", most_bytes)
    scene = make(at_once)

    scene.begins(job_of("a"))
    wait_until(lambda: scene.noted.keys() == {"a"} and len(scene.senders) == is_here)

    assert scene.writers == ["goondan-event-loop" if is_here else "goondan-short-jobs"]


@pytest.mark.parametrize("has_reported", [False, True])
def test_lead_takes_results_along_unless_reports_precede_them(make: Make, has_reported: bool) -> None:
    scene, job = make(at_once), job_of("a")
    scene.lead_takes = True
    if has_reported:
        job.reporter = SimpleNamespace(last=lambda: None)  # type: ignore[assignment]

    scene.begins(job)
    wait_until(lambda: bool(scene.taken_along or scene.packets))

    assert scene.taken_along == ([] if has_reported else [["a"]])
    assert scene.packets == ([["a"]] if has_reported else [])
    assert job.token in scene.result_writer.unconfirmed or has_reported  # a drain must find it


def test_lease_is_renewed_until_result_is_confirmed(make: Make) -> None:
    gate = threading.Event()
    scene = make(at_once)
    scene.before_packet = gate.wait
    job = job_of("1")

    scene.begins(job)
    wait_until(lambda: job.token in scene.result_writer.unconfirmed)
    assert scene.result_writer.awaits_confirmation
    gate.set()

    wait_until(lambda: not scene.result_writer.awaits_confirmation)


def test_long_call_is_detached_and_ends_detached(make: Make) -> None:
    go_on = asyncio.Event()
    scene = make(lambda number: go_on.wait())
    scene.begins(job_of("1"))

    wait_until(lambda: scene.comes_to_last("1"))
    assert scene.calls.jobs == []
    assert not scene.was_idle
    scene.event_loop.put_off(go_on.set)
    scene.event_loop.flush()

    wait_until(lambda: scene.detached["1"] is not None)
    assert scene.packets == []


@pytest.mark.parametrize("way", ["cancel", "limit"])
def test_long_call_is_interrupted_once_allowing_cleanup(make: Make, way: str) -> None:
    cleaned_up: list[str] = []

    async def cleans_up(number: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(number)

    scene = make(cleans_up, limit=LIMIT if way == "cancel" else 0.05)
    job = job_of("1")
    scene.begins(job)
    wait_until(lambda: scene.comes_to_last("1"))
    if way == "cancel":
        assert job.cancellation is not None
        job.cancellation.set(ToolCancelledError())

    wait_until(lambda: scene.detached["1"] is not None)
    result = scene.detached["1"]
    assert result is not None
    assert result.error is not None
    assert result.error.code == (ToolCancelledError.code if way == "cancel" else ToolTimeoutError.code)
    assert cleaned_up == ["1"]


def test_blocking_handlers_run_one_after_another_beside_loop(make: Make) -> None:
    go_on = threading.Event()
    ran: list[tuple[str, str]] = []

    def handle(number: str) -> str:
        go_on.wait(60)
        ran.append((number, threading.current_thread().name))
        return number

    scene = make(handle, is_blocking=True)
    scene.begins(job_of("1"), job_of("2"))
    assert scene.must_look.wait(60)
    assert scene.calls.must_look
    go_on.set()

    wait_until(lambda: len(scene.noted) == 2)
    assert [number for number, _ in ran] == ["1", "2"]
    assert "goondan-event-loop" not in {thread for _, thread in ran}
    wait_until(lambda: not scene.calls.must_look)


def test_ended_blocking_handler_does_not_await_next(make: Make) -> None:
    go_on = threading.Event()

    def handle(number: str) -> str:
        if number == "2":
            go_on.wait(60)
        return number

    scene = make(handle, is_blocking=True)
    scene.begins(job_of("1"), job_of("2"))

    def has_ended() -> bool:
        scene.calls.look()
        return "1" in scene.noted or scene.detached.get("1") is not None  # a busy machine makes it long

    wait_until(has_ended)
    assert "2" not in scene.noted
    go_on.set()
    wait_until(lambda: not scene.calls.must_look)


def test_long_blocking_handler_neither_delays_others_nor_is_abandoned(make: Make) -> None:
    go_on, cancelled = threading.Event(), threading.Event()

    def handle(number: str) -> str:
        if number == "1":
            go_on.wait(60)
        return number

    scene = make(handle, is_blocking=True)
    job = job_of("1")
    scene.begins(job, job_of("2"))
    wait_until(lambda: scene.comes_to_last("1"))
    wait_until(lambda: scene.comes_to_last("1") and scene.noted == {"2": None})
    job.ensure_cancellation().set(ToolCancelledError())
    scene.event_loop.put_off(cancelled.set)
    scene.event_loop.flush()
    assert cancelled.wait(60)
    assert scene.detached["1"] is None  # its thread still runs
    go_on.set()

    wait_until(lambda: scene.detached["1"] is not None)
    wait_until(lambda: not scene.calls.must_look)


def test_handler_cancelling_itself_fails_alone(make: Make) -> None:
    async def cancels(number: str) -> str:
        if number == "1":
            raise asyncio.CancelledError
        return number

    scene = make(cancels)
    scene.begins(job_of("1"), job_of("2"))

    wait_until(lambda: len(scene.noted) == 2)
    assert scene.noted == {"1": "E_TOOL", "2": None}


def test_internal_fault_ends_call_and_frees_slot(make: Make) -> None:
    async def handle(number: str) -> str:
        return "fault"

    scene = make(handle)
    scene.begins(job_of("1"))

    wait_until(lambda: scene.slots.taken == 0)
    assert scene.noted == {"1": "E_TOOL"}
    assert scene.calls.is_idle


def test_stale_mark_is_reconfirmed_before_handler_begins(make: Make) -> None:
    begun: list[float] = []

    async def begins(number: str) -> None:
        begun.append(len(scene.confirmed))

    scene = make(begins)
    job = job_of("1")
    job.fresh_until -= 25

    scene.begins(job)

    wait_until(lambda: len(scene.noted) == 1)
    assert (scene.confirmed, begun) == (["1"], [1])


def test_call_with_unreconfirmed_mark_never_begins(make: Make) -> None:
    begun: list[str] = []
    scene = make(lambda number: begun.append(number))
    scene.refusal = ToolOutcomeUnknownError("The claim was lost.")
    job = job_of("1")
    job.fresh_until -= 25

    scene.begins(job)

    wait_until(lambda: scene.noted == {"1": ToolOutcomeUnknownError.code})
    assert begun == []


def test_retryable_call_is_finished_by_pool(make: Make) -> None:
    async def fails(number: str) -> None:
        raise ValueError(number)

    scene = make(fails, has_retry=True)
    scene.begins(job_of("1"))

    wait_until(lambda: scene.slots.taken == 0)
    assert scene.finished["1"].status == "error"
    assert scene.packets == []
    assert scene.calls.is_idle


def test_record_refusing_result_affects_no_other_call(make: Make) -> None:
    scene = make(at_once)
    scene.refuses = "1"

    scene.begins(*(job_of(str(number)) for number in range(3)))

    wait_until(lambda: scene.calls.is_idle and len(scene.noted) == 2)
    assert sorted(scene.noted) == ["0", "2"]
    assert scene.packets == [["0", "1", "2"], ["0"], ["1"], ["2"]]


def test_cancelled_and_lost_verdicts_of_redis_are_followed(make: Make) -> None:
    scene = make(at_once)
    scene.answers = {"0": int(Stored.CANCELLED), "1": int(Stored.LOST)}

    scene.begins(*(job_of(str(number)) for number in range(3)))

    wait_until(lambda: scene.calls.is_idle)
    assert (scene.cancelled, list(scene.noted)) == (["0"], ["2"])


def test_call_cancelled_before_reaching_loop_never_begins(make: Make) -> None:
    begun: list[str] = []
    held, scene = threading.Event(), make(lambda number: begun.append(number))
    scene.event_loop.put_off(partial(held.wait, 10))
    scene.event_loop.flush()
    job = job_of("1")
    scene.begins(job)
    scene.calls.detach(job)
    assert job.cancellation is not None
    job.cancellation.set(ToolCancelledError())
    held.set()

    wait_until(lambda: scene.detached["1"] is not None)
    result = scene.detached["1"]
    assert result is not None
    assert result.error is not None
    assert (result.error.code, begun) == (ToolCancelledError.code, [])


@pytest.mark.parametrize("way", ["cancel", "limit"])
def test_call_interrupted_before_task_begins_ends_unstarted(make: Make, way: str) -> None:
    begun: list[str] = []
    scene = make(lambda number: begun.append(number), limit=0.001 if way == "limit" else LIMIT)
    job = job_of("1")
    assert scene.slots.take()
    scene.calls.begin(job, scene.plan)

    def interrupt() -> None:  # on the event loop, just after the task was made
        scene.calls.detach(job)
        if way == "cancel":
            job.ensure_cancellation().set(ToolCancelledError())
        else:
            wait_until(lambda: scene.event_loop._put_off)

    scene.event_loop.put_off(interrupt)
    scene.event_loop.flush()

    wait_until(lambda: scene.detached.get("1"), 10)
    result = scene.detached["1"]
    assert result is not None
    assert result.error is not None
    assert result.error.code == (ToolCancelledError.code if way == "cancel" else ToolTimeoutError.code)
    assert begun == []
